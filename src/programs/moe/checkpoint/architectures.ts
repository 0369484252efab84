// How the MoE blocks of each architecture are named in its checkpoints, and how its router chooses experts.
import { quote } from '../../../core/quote.ts';
import type { ExpertGroups, RouterOptions } from '../moe-block.ts';
import { formatError } from '../safetensors-header.ts';
import type { ModelConfig, ModelFolder } from './model-folder.ts';

/** Tensors of an expert, each [out, in], below `layers.N.`. */
export interface ExpertNames {
  readonly gate: string;
  readonly up: string;
  readonly down: string;
}

export interface Architecture {
  /** [experts, H], below `layers.N.`, as all names here. */
  readonly router: string;
  /** [experts], added to the scores that choose. */
  readonly bias?: (config: ModelConfig) => string | undefined;
  readonly expert: (index: number) => ExpertNames;
  /** An expert that all tokens go through, if the layer has it; `scale` [1, H]: its sigmoid weights the expert. */
  readonly shared?: ExpertNames & { readonly scale?: string };
  /** The router's options, or what of the configuration cannot be computed. */
  readonly rules: (config: ModelConfig) => RouterOptions | string;
}

function projections(block: string): ExpertNames {
  const name = (part: string): string => `${block}.${part}_proj.weight`;
  return { gate: name('gate'), up: name('up'), down: name('down') };
}

/** Softmax over all experts, then the best. `normalize` stands for a configuration that says nothing of it. */
function plainRules(experts: 'num_local_experts' | 'num_experts', normalize: boolean): Architecture['rules'] {
  return (config) => {
    const [total, topk] = [config[experts], config.num_experts_per_tok];
    if (total == null || topk == null) return `it has no ${total == null ? experts : 'num_experts_per_tok'}`;
    return { experts: total, topk, normalize: config.norm_topk_prob ?? normalize };
  };
}

const mlp = { router: 'mlp.gate.weight', expert: (index: number) => projections(`mlp.experts.${index}`) } as const;

/** DeepSeek's ways to choose: among all experts, or among those of the best groups. */
const groupRules = { greedy: undefined, group_limited_greedy: 'best', noaux_tc: 'bestTwo' } as const;

function deepSeekRules(usual: {
  readonly scoring: 'softmax' | 'sigmoid';
  readonly method: keyof typeof groupRules;
  readonly normalize: boolean;
}): Architecture['rules'] {
  return (config) => {
    const { n_routed_experts: experts, num_experts_per_tok: topk } = config;
    if (experts == null || topk == null) {
      return `it has no ${experts == null ? 'n_routed_experts' : 'num_experts_per_tok'}`;
    }
    const scoring = config.scoring_func ?? usual.scoring;
    if (scoring !== 'softmax' && scoring !== 'sigmoid') {
      return `scoring_func is ${quote(scoring)}, expected "softmax" or "sigmoid"`;
    }
    const method = methodOf(config, usual.method);
    if (method === undefined) {
      return `topk_method is ${quote(config.topk_method)}, expected ${Object.keys(groupRules)
        .map((name) => quote(name))
        .join(', ')}`;
    }
    const groups = groupsOf(config, { method, experts, topk });
    if (typeof groups === 'string') return groups;
    const normalize = topk > 1 && (config.norm_topk_prob ?? usual.normalize);
    // DeepSeek-V2 scales no weights that add up to 1; DeepSeek-V3 scales all.
    const scale = normalize && method !== 'noaux_tc' ? 1 : (config.routed_scaling_factor ?? 1);
    return { experts, topk, normalize, scoring, scale, ...(groups === undefined ? {} : { groups }) };
  };
}

function methodOf(
  { topk_method: method }: ModelConfig,
  usual: keyof typeof groupRules,
): keyof typeof groupRules | undefined {
  if (method == null) return usual;
  return Object.hasOwn(groupRules, method) ? (method as keyof typeof groupRules) : undefined;
}

function groupsOf(
  { n_group: count, topk_group: chosen }: ModelConfig,
  of: { readonly method: keyof typeof groupRules; readonly experts: number; readonly topk: number },
): ExpertGroups | undefined | string {
  const by = groupRules[of.method];
  if (by === undefined || count == null || chosen == null || chosen === count) return undefined;
  const size = of.experts / count;
  if (!Number.isInteger(size)) return `n_group ${count} does not divide the ${of.experts} experts`;
  if (by === 'bestTwo' && size < 2) {
    return `n_group ${count} of ${of.experts} experts leaves one expert in a group, of which topk_method noaux_tc adds up the best two`;
  }
  if (chosen > count || chosen * size < of.topk) {
    return `topk_group ${chosen} of n_group ${count} leaves too few of ${of.experts} experts for num_experts_per_tok ${of.topk}`;
  }
  return { count, chosen, by };
}

const sharedExperts = projections('mlp.shared_experts');

/** The architectures by `model_type` of the configuration. */
const architectures = {
  mixtral: {
    router: 'block_sparse_moe.gate.weight',
    expert: (index) => {
      const name = (part: string): string => `block_sparse_moe.experts.${index}.${part}.weight`;
      return { gate: name('w1'), up: name('w3'), down: name('w2') };
    },
    rules: plainRules('num_local_experts', true),
  },
  qwen2_moe: {
    ...mlp,
    shared: { ...projections('mlp.shared_expert'), scale: 'mlp.shared_expert_gate.weight' },
    rules: plainRules('num_experts', false),
  },
  qwen3_moe: { ...mlp, rules: plainRules('num_experts', false) },
  olmoe: { ...mlp, rules: plainRules('num_experts', false) },
  deepseek_v2: {
    ...mlp,
    shared: sharedExperts,
    rules: deepSeekRules({ scoring: 'softmax', method: 'greedy', normalize: false }),
  },
  deepseek_v3: {
    ...mlp,
    shared: sharedExperts,
    bias: ({ topk_method: method }) =>
      method == null || method === 'noaux_tc' ? 'mlp.gate.e_score_correction_bias' : undefined,
    rules: deepSeekRules({ scoring: 'sigmoid', method: 'noaux_tc', normalize: true }),
  },
} as const satisfies Readonly<Record<string, Architecture>>;

/** What is known and cannot be computed. */
const refused: Readonly<Record<string, string>> = {
  gpt_oss:
    'its experts add biases and clamp their activation, and are stored as MXFP4; weftline moe computes plain SwiGLU',
  llama4: 'its experts are stored as one tensor, and its router weights the input of an expert, not its output',
};

/** The architecture of a model, or why there is none. */
function architectureOf({ model_type: type, hidden_act: activation }: ModelConfig): Architecture | string {
  if (Object.hasOwn(refused, type)) return `model_type ${type} cannot be run: ${refused[type]}`;
  if (!Object.hasOwn(architectures, type)) {
    return `model_type ${quote(type)} is not known; known are ${Object.keys(architectures).join(', ')}`;
  }
  if (activation !== undefined && activation !== 'silu') {
    return `hidden_act is ${quote(activation)}, expected "silu"`;
  }
  return architectures[type as keyof typeof architectures];
}

// The layers of a model that have a MoE block, and the names of its tensors.

/** A checkpoint of the bare model leaves out the first word. */
const prefixes = ['model.layers.', 'layers.'] as const;

export interface ModelLayers {
  readonly architecture: Architecture;
  /** Numbers of the layers that have experts, ascending. */
  readonly numbers: readonly number[];
  /** Layers in the files that the configuration does not count, ascending: they have experts, and are not the model's. */
  readonly behind: readonly number[];
  /** The full name of a layer's tensor. */
  readonly nameOf: (layer: number, tensor: string) => string;
}

/** Fails with WL_FILE_FORMAT if the architecture is not known, or no layer has experts. */
export function findModelLayers(folder: ModelFolder): ModelLayers {
  const architecture = architectureOf(folder.config);
  if (typeof architecture === 'string') throw formatError(`${folder.path}/config.json`, architecture);
  const { router } = architecture;
  const end = folder.config.num_hidden_layers ?? Infinity;
  for (const prefix of prefixes) {
    const all: number[] = [];
    for (const name of folder.names()) {
      if (!name.startsWith(prefix) || !name.endsWith(`.${router}`)) continue;
      const digits = name.slice(prefix.length, -router.length - 1);
      if (/^(0|[1-9]\d{0,5})$/.test(digits)) all.push(Number(digits));
    }
    if (all.length === 0) continue;
    all.sort((one, other) => one - other);
    // A layer behind the last one predicts further tokens, in training and for drafts; the model itself does not have it.
    const numbers = all.filter((layer) => layer < end);
    const behind = all.filter((layer) => layer >= end);
    if (numbers.length === 0) {
      throw formatError(
        `${folder.path}/config.json`,
        `num_hidden_layers is ${end}, and the layers with experts in the files are ${describeNumbers(behind)}, expected at least one below num_hidden_layers: fetch config.json and the files again from the same model`,
      );
    }
    const nameOf = (layer: number, tensor: string): string => `${prefix}${layer}.${tensor}`;
    return { architecture, numbers, behind, nameOf };
  }
  const expected = quote(`${prefixes[0]}N.${router}`);
  throw formatError(
    folder.path,
    `no layer has experts: expected tensors ${expected} of model_type ${folder.config.model_type}`,
  );
}

/** "0, 2 to 5" */
export function describeNumbers(values: readonly number[]): string {
  const runs: string[] = [];
  for (let at = 0; at < values.length;) {
    let end = at;
    while (values[end + 1] === values[end]! + 1) end++;
    runs.push(end === at ? `${values[at]}` : `${values[at]} to ${values[end]}`);
    at = end + 1;
  }
  return runs.join(', ');
}
