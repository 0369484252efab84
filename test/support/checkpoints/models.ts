// Small models with the names and the configurations of published ones, and how each architecture's router chooses: written
// down from their published code, apart from the library.
import { linear, type Matrices, type Matrix, sigmoid, softmax, swigluMlp, topk } from './matrices.ts';

export interface Choice {
  readonly expert: number;
  readonly weight: number;
}

export interface SmallModel {
  readonly config: Readonly<Record<string, unknown>>;
  readonly hidden: number;
  /** Tensors of a layer below `model.layers.N.`, with their shapes; those of a dense layer if it is one. */
  readonly tensors: (layer: number) => Readonly<Record<string, readonly number[]>>;
  readonly layers: number;
  /** Layers with experts. */
  readonly moeLayers: readonly number[];
  /** How matrices are stored; vectors and routers of DeepSeek-V3 as it stores them. */
  readonly dtype: 'BF16' | 'F16' | 'F32' | 'F8_E4M3';
  readonly shards: number;
  /** The choices of a token from its logits. */
  readonly route: (logits: readonly number[], bias: readonly number[]) => Choice[];
  readonly names: {
    readonly router: string;
    readonly bias?: string;
    readonly expert: (index: number) => readonly [gate: string, up: string, down: string];
    readonly shared?: readonly [gate: string, up: string, down: string];
    readonly sharedGate?: string;
  };
}

function choose(
  scores: readonly number[],
  experts: readonly number[],
  options: { normalize?: boolean; scale?: number } = {},
): Choice[] {
  const sum = options.normalize === true ? experts.reduce((total, expert) => total + scores[expert]!, 0) : 1;
  return experts.map((expert) => ({ expert, weight: (scores[expert]! / sum) * (options.scale ?? 1) }));
}

/** What of the scores stays when only the best groups may be chosen from. */
function keepGroups(
  scores: readonly number[],
  count: number,
  kept: number,
  value: (group: readonly number[]) => number,
): number[] {
  const size = scores.length / count;
  const groups = Array.from({ length: count }, (_, group) => value(scores.slice(group * size, (group + 1) * size)));
  const best = topk(groups, kept);
  return scores.map((score, at) => (best.includes(Math.floor(at / size)) ? score : Number.NEGATIVE_INFINITY));
}

const projections = (block: string) =>
  [`${block}.gate_proj.weight`, `${block}.up_proj.weight`, `${block}.down_proj.weight`] as const;

interface Sizes {
  readonly hidden: number;
  readonly intermediate: number;
  readonly experts: number;
  readonly shared?: number;
}

function blockTensors(names: SmallModel['names'], { hidden, intermediate, experts, shared = 0 }: Sizes) {
  const tensors: Record<string, readonly number[]> = { [names.router]: [experts, hidden] };
  const add = ([gate, up, down]: readonly string[], width: number): void => {
    tensors[gate!] = [width, hidden];
    tensors[up!] = [width, hidden];
    tensors[down!] = [hidden, width];
  };
  for (let index = 0; index < experts; index++) add(names.expert(index), intermediate);
  if (names.shared !== undefined) add(names.shared, shared);
  if (names.sharedGate !== undefined) tensors[names.sharedGate] = [1, hidden];
  if (names.bias !== undefined) tensors[names.bias] = [experts];
  return tensors;
}

const mlpNames = { router: 'mlp.gate.weight', expert: (index: number) => projections(`mlp.experts.${index}`) };
const mixtralNames = {
  router: 'block_sparse_moe.gate.weight',
  expert: (index: number) =>
    [
      `block_sparse_moe.experts.${index}.w1.weight`,
      `block_sparse_moe.experts.${index}.w3.weight`,
      `block_sparse_moe.experts.${index}.w2.weight`,
    ] as const,
};
const qwen2Names = {
  ...mlpNames,
  shared: projections('mlp.shared_expert'),
  sharedGate: 'mlp.shared_expert_gate.weight',
};
const v2Names = { ...mlpNames, shared: projections('mlp.shared_experts') };
const v3Names = { ...v2Names, bias: 'mlp.gate.e_score_correction_bias' };

const dense = (hidden: number) => ({ 'mlp.gate_proj.weight': [40, hidden], 'mlp.down_proj.weight': [hidden, 40] });

const two = { layers: 2, moeLayers: [0, 1] };

export const smallModels = {
  mixtral: {
    ...two,
    config: { model_type: 'mixtral', hidden_act: 'silu', num_local_experts: 8, num_experts_per_tok: 2 },
    hidden: 48,
    dtype: 'BF16',
    shards: 1,
    names: mixtralNames,
    tensors: () => blockTensors(mixtralNames, { hidden: 48, intermediate: 32, experts: 8 }),
    route: (logits) => {
      const scores = softmax(logits);
      return choose(scores, topk(scores, 2), { normalize: true });
    },
  },
  qwen2: {
    ...two,
    config: {
      model_type: 'qwen2_moe',
      hidden_act: 'silu',
      num_experts: 12,
      num_experts_per_tok: 4,
      norm_topk_prob: false,
    },
    hidden: 40,
    dtype: 'BF16',
    shards: 3,
    names: qwen2Names,
    tensors: () => blockTensors(qwen2Names, { hidden: 40, intermediate: 16, experts: 12, shared: 56 }),
    route: (logits) => {
      const scores = softmax(logits);
      return choose(scores, topk(scores, 4));
    },
  },
  qwen3: {
    ...two,
    config: {
      model_type: 'qwen3_moe',
      hidden_act: 'silu',
      num_experts: 16,
      num_experts_per_tok: 4,
      norm_topk_prob: true,
    },
    hidden: 32,
    dtype: 'F16',
    shards: 2,
    names: mlpNames,
    tensors: () => blockTensors(mlpNames, { hidden: 32, intermediate: 24, experts: 16 }),
    route: (logits) => {
      const scores = softmax(logits);
      return choose(scores, topk(scores, 4), { normalize: true });
    },
  },
  olmoe: {
    ...two,
    config: { model_type: 'olmoe', hidden_act: 'silu', num_experts: 16, num_experts_per_tok: 8, norm_topk_prob: false },
    hidden: 32,
    dtype: 'F32',
    shards: 1,
    names: mlpNames,
    tensors: () => blockTensors(mlpNames, { hidden: 32, intermediate: 16, experts: 16 }),
    route: (logits) => {
      const scores = softmax(logits);
      return choose(scores, topk(scores, 8));
    },
  },
  deepseekV2: {
    config: {
      model_type: 'deepseek_v2',
      hidden_act: 'silu',
      n_routed_experts: 16,
      n_shared_experts: 2,
      num_experts_per_tok: 3,
      topk_method: 'group_limited_greedy',
      scoring_func: 'softmax',
      n_group: 4,
      topk_group: 2,
      norm_topk_prob: false,
      routed_scaling_factor: 16,
      first_k_dense_replace: 1,
    },
    layers: 3,
    moeLayers: [1, 2],
    hidden: 40,
    dtype: 'BF16',
    shards: 2,
    names: v2Names,
    tensors: (layer) =>
      layer === 0 ? dense(40) : blockTensors(v2Names, { hidden: 40, intermediate: 16, experts: 16, shared: 32 }),
    route: (logits) => {
      const scores = softmax(logits);
      const kept = keepGroups(scores, 4, 2, (group) => Math.max(...group));
      return choose(scores, topk(kept, 3), { scale: 16 });
    },
  },
  deepseekV3: {
    config: {
      model_type: 'deepseek_v3',
      hidden_act: 'silu',
      n_routed_experts: 16,
      n_shared_experts: 1,
      num_experts_per_tok: 4,
      topk_method: 'noaux_tc',
      scoring_func: 'sigmoid',
      n_group: 4,
      topk_group: 2,
      norm_topk_prob: true,
      routed_scaling_factor: 2.5,
      first_k_dense_replace: 1,
      quantization_config: { quant_method: 'fp8', fmt: 'e4m3', weight_block_size: [128, 128] },
    },
    layers: 3,
    moeLayers: [1, 2],
    hidden: 136,
    dtype: 'F8_E4M3',
    shards: 2,
    names: v3Names,
    tensors: (layer) =>
      layer === 0 ? dense(136) : blockTensors(v3Names, { hidden: 136, intermediate: 136, experts: 16, shared: 136 }),
    route: (logits, bias) => {
      const scores = logits.map(sigmoid);
      const biased = scores.map((score, expert) => score + bias[expert]!);
      const kept = keepGroups(biased, 4, 2, (group) => {
        const [first, second] = topk(group, 2);
        return group[first!]! + group[second!]!;
      });
      return choose(scores, topk(kept, 4), { normalize: true, scale: 2.5 });
    },
  },
} as const satisfies Readonly<Record<string, SmallModel>>;

export interface ReferenceBlock {
  readonly choices: readonly (readonly Choice[])[];
  /** [T, H] */
  readonly output: Float64Array;
}

/** A layer's block, token by token, in double precision. */
export function referenceBlock(model: SmallModel, matrices: Matrices, layer: number, x: Matrix): ReferenceBlock {
  const of = (name: string): Matrix => matrices.get(`model.layers.${layer}.${name}`)!;
  const { router, bias, expert, shared, sharedGate } = model.names;
  const biases = bias === undefined ? [] : Array.from(of(bias).values);
  const [tokens = 0, hidden = 0] = x.shape;
  const output = new Float64Array(tokens * hidden);
  const choices = Array.from({ length: tokens }, (_, token) => {
    const row = Array.from({ length: hidden }, (__, column) => x.values[token * hidden + column]!);
    const add = (names: readonly [string, string, string], weight: number): void => {
      const result = swigluMlp([of(names[0]), of(names[1]), of(names[2])], row);
      for (const [column, value] of result.entries()) {
        output[token * hidden + column] = output[token * hidden + column]! + weight * value;
      }
    };
    const chosen = model.route(linear(of(router), row), biases);
    for (const { expert: index, weight } of chosen) add(expert(index), weight);
    if (shared !== undefined) add(shared, sharedGate === undefined ? 1 : sigmoid(linear(of(sharedGate), row)[0]!));
    return chosen;
  });
  return { choices, output };
}
