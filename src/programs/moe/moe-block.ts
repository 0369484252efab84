// What a file that holds a mixture-of-experts block must contain, and how it is to be computed.
import { z } from '#zod';
import { invalidArgument } from '../../core/errors.ts';
import { printable, quote } from '../../core/quote.ts';
import { describeIssue, parsePythonJson } from './checkpoint/model-folder.ts';
import type { SafetensorsFile } from './safetensors-file.ts';
import { formatError, type SafetensorsDtype } from './safetensors-header.ts';

export const blockTensors = {
  x: 'x',
  topkIdx: 'topk_idx',
  topkWeights: 'topk_weights',
  gate: 'gate.weight',
  gateUp: 'experts.gate_up_proj',
  down: 'experts.down_proj',
  reference: 'output_f32',
} as const;

/**
 * A block y[t] = sum over k of weight[t,k] * expert[id[t,k]](x[t]), plus the weighted shared expert if it has one;
 * expert(x) = down(silu(gate(x)) * up(x)).
 */
export interface MoeBlock extends RouterOptions {
  /** The file, or the model's folder. */
  readonly path: string;
  /** The place of the block in a model. */
  readonly model?: ModelLayer;
  readonly tokens: number;
  /** Elements of a token, a multiple of 8. */
  readonly hidden: number;
  readonly experts: number;
  /** Width between an expert's two layers, a multiple of 8. */
  readonly intermediate: number;
  readonly topk: number;
  /** 'file': expert ids and weights are in the file. 'gate': the router chooses, see routeTopk(). */
  readonly routing: 'file' | 'gate';
  /** True if the weights of the experts that a gate has chosen are divided by their sum. */
  readonly normalize: boolean;
  /** Width of the expert that all tokens go through, whose output is added; without one there is none. */
  readonly sharedIntermediate?: number;
  /** The file has the output to compare with. */
  readonly hasReference: boolean;
}

/** A block's place in a model. */
interface ModelLayer {
  /** `model_type` of its configuration. */
  readonly type: string;
  /** The number of the layer, from 0. */
  readonly layer: number;
  /** The file of the tokens. */
  readonly input: string;
}

export interface MoeBlockOptions {
  /** Experts per token; for a file without expert ids, whose metadata `config` may also say num_experts_per_tok. */
  readonly topk?: number;
  /** Likewise norm_topk_prob; false if neither says it. */
  readonly normalize?: boolean;
}

export const maxTopk = 32;
/** Characters of a model's configuration; those that are published have some thousand. */
const MAX_CONFIG_LENGTH = 65_536;

const configSchema = z.looseObject({
  num_experts_per_tok: z.number().int().positive().optional(),
  norm_topk_prob: z.boolean().optional(),
  hidden_act: z.string().optional(),
});

/** Checks the file's header. Fails with WL_FILE_FORMAT naming the tensor that is missing or does not fit the others. */
export function describeMoeBlock(file: SafetensorsFile, options: MoeBlockOptions = {}): MoeBlock {
  const [tokens, hidden] = shapeOf(file, blockTensors.x, ['BF16'], ['T', 'H']) as [number, number];
  const gateUp = shapeOf(file, blockTensors.gateUp, ['BF16'], ['E', '2I', hidden]) as [number, number, number];
  const [experts, doubled] = gateUp;
  if (doubled % 16 !== 0) throw odd(file, blockTensors.gateUp, `2I = ${doubled}, expected a multiple of 16`);
  if (hidden % 8 !== 0 || hidden === 0) throw odd(file, blockTensors.x, `H = ${hidden}, expected a multiple of 8`);
  if (experts === 0) throw odd(file, blockTensors.gateUp, 'no experts');
  const intermediate = doubled / 2;
  shapeOf(file, blockTensors.down, ['BF16'], [experts, hidden, intermediate]);
  const hasReference = file.tensors.has(blockTensors.reference);
  if (hasReference) shapeOf(file, blockTensors.reference, ['F32'], [tokens, hidden]);
  const config = readConfig(file);
  if (config.hidden_act !== undefined && config.hidden_act !== 'silu') {
    throw formatError(file.path, `its metadata config has hidden_act ${quote(config.hidden_act)}, expected "silu"`);
  }
  const shape = { path: file.path, tokens, hidden, experts, intermediate, hasReference };
  if (file.tensors.has(blockTensors.topkIdx) || file.tensors.has(blockTensors.topkWeights)) {
    const topk = choicesInFile(file, shape, options);
    return { ...shape, topk, routing: 'file', normalize: false };
  }
  shapeOf(file, blockTensors.gate, ['BF16'], [experts, hidden]);
  const topk = options.topk ?? config.num_experts_per_tok;
  if (topk === undefined) {
    throw invalidArgument(
      'topk',
      topk,
      `given, since ${file.path} has neither topk_idx nor num_experts_per_tok in its metadata config`,
    );
  }
  checkTopk(topk, experts);
  return { ...shape, topk, routing: 'gate', normalize: options.normalize ?? config.norm_topk_prob ?? false };
}

function choicesInFile(
  file: SafetensorsFile,
  shape: { tokens: number; experts: number },
  options: MoeBlockOptions,
): number {
  const { tokens, experts } = shape;
  const [, topk] = shapeOf(file, blockTensors.topkIdx, ['I64', 'I32'], [tokens, 'K']) as [number, number];
  shapeOf(file, blockTensors.topkWeights, ['F32'], [tokens, topk]);
  if (topk < 1 || topk > Math.min(maxTopk, experts)) {
    throw odd(file, blockTensors.topkIdx, `K = ${topk}, expected 1 to ${Math.min(maxTopk, experts)}`);
  }
  if (options.topk !== undefined && options.topk !== topk) {
    throw invalidArgument('topk', options.topk, `${topk}, which ${file.path} has in topk_idx, or none`);
  }
  if (options.normalize !== undefined) {
    throw invalidArgument('normalize', options.normalize, `none: ${file.path} has its weights in topk_weights`);
  }
  return topk;
}

function checkTopk(topk: number, experts: number): void {
  const most = Math.min(maxTopk, experts);
  if (!Number.isInteger(topk) || topk < 1 || topk > most) throw invalidArgument('topk', topk, `1 to ${most}`);
}

/** The extents of a tensor, after comparing them with `pattern`, in which text stands for any. */
export function shapeOf(
  file: SafetensorsFile,
  name: string,
  dtypes: readonly SafetensorsDtype[],
  pattern: readonly (number | string)[],
): readonly number[] {
  const { dtype, shape } = file.entry(name);
  const fits =
    shape.length === pattern.length &&
    pattern.every((extent, axis) => typeof extent === 'string' || extent === shape[axis]);
  if (!fits || !dtypes.includes(dtype)) {
    throw formatError(
      file.path,
      `tensor ${name} is ${dtype} [${shape.join(', ')}], wanted is ${dtypes.join(' or ')} [${pattern.join(', ')}]`,
      { tensor: name, dtype, shape },
    );
  }
  return shape;
}

function odd(file: SafetensorsFile, name: string, what: string): Error {
  return formatError(file.path, `tensor ${name} [${file.entry(name).shape.join(', ')}] has ${what}`, { tensor: name });
}

/** The model's configuration in the file's metadata: JSON in the text `config`, absent in many files. */
function readConfig(file: SafetensorsFile): z.infer<typeof configSchema> {
  const text = file.metadata['config'];
  if (text === undefined) return {};
  if (text.length > MAX_CONFIG_LENGTH) {
    throw formatError(
      file.path,
      `its metadata config has ${text.length} characters, at most ${MAX_CONFIG_LENGTH} are read`,
    );
  }
  let config: unknown;
  try {
    config = parsePythonJson(text);
  } catch (error) {
    throw formatError(file.path, `its metadata config cannot be read: ${printable(String(error), 200)}`);
  }
  const { data, error } = configSchema.safeParse(config);
  if (data !== undefined) return data;
  throw formatError(file.path, `its metadata config cannot be read: ${describeIssue(error, config)}`);
}

// Chooses the experts of each token from the gate's logits.

export interface RouterOptions {
  readonly experts: number;
  readonly topk: number;
  /** Divide the weights of the chosen experts by their sum. */
  readonly normalize: boolean;
  /** What becomes of logits: a softmax over all experts (default), or a sigmoid of each. */
  readonly scoring?: 'softmax' | 'sigmoid';
  /** Groups of experts, of which the best may be chosen alone. */
  readonly groups?: ExpertGroups;
  /** Multiplies the weights, after `normalize`; 1 by default. */
  readonly scale?: number;
}

/** Experts in `count` groups of equal size, in order. */
export interface ExpertGroups {
  readonly count: number;
  /** Groups of which a token may choose experts. */
  readonly chosen: number;
  /** A group is as good as its best expert, or as the sum of its best two. */
  readonly by: 'best' | 'bestTwo';
}

/** Rows of `topk` choices per token, in descending order of the score that chose them. */
interface Choices {
  /** [T, K] */
  readonly ids: BigInt64Array;
  /** [T, K] */
  readonly weights: Float32Array;
}

/** Added to a sum before something is divided by it, as DeepSeek's models do: sigmoids may all be 0. */
const SMALLEST_SUM = 1e-20;

/**
 * Scores the logits [T, experts] of each token and takes the largest `topk`; of equal ones the lower expert id comes first,
 * and of equal groups the lower group. `bias` [experts] is added to the scores by which experts and groups are chosen, not to
 * weights. All in f32. Fails with WL_INVALID_ARGUMENT if a logit is NaN or infinite.
 */
export function routeTopk(logits: Float32Array, options: RouterOptions, bias?: Float32Array): Choices {
  const { experts, topk, normalize, scoring = 'softmax', groups, scale = 1 } = options;
  const tokens = logits.length / experts;
  const ids = new BigInt64Array(tokens * topk);
  const weights = new Float32Array(tokens * topk);
  const scores = new Float32Array(experts);
  const ranking = new Float32Array(experts);
  const isOut = new Uint8Array(experts);
  const score = scoring === 'softmax' ? softmax : sigmoid;
  for (let token = 0; token < tokens; token++) {
    const row = logits.subarray(token * experts, (token + 1) * experts);
    requireFinite(row, token);
    score(row, scores);
    for (let expert = 0; expert < experts; expert++) ranking[expert] = scores[expert]! + (bias?.[expert] ?? 0);
    isOut.fill(0);
    if (groups !== undefined) excludeGroups(ranking, groups, isOut);
    const first = token * topk;
    let sum = 0;
    for (let k = 0; k < topk; k++) {
      const best = takeLargest(ranking, isOut);
      const weight = scores[best]!;
      ids[first + k] = BigInt(best);
      weights[first + k] = weight;
      sum = Math.fround(sum + weight);
    }
    const divisor = normalize ? Math.fround(sum + SMALLEST_SUM) : 1;
    for (let k = first; k < first + topk; k++) weights[k] = Math.fround(weights[k]! / divisor) * scale;
  }
  return { ids, weights };
}

/** Leaves the experts of the best groups in the running: `isOut` becomes 1 for all others. */
function excludeGroups(ranking: Float32Array, { count, chosen, by }: ExpertGroups, isOut: Uint8Array): void {
  const size = ranking.length / count;
  const values = Float32Array.from({ length: count }, (_, group) =>
    groupValue(ranking.subarray(group * size, (group + 1) * size), by),
  );
  const isTaken = new Uint8Array(count);
  for (let taken = 0; taken < chosen; taken++) takeLargest(values, isTaken);
  for (let group = 0; group < count; group++) {
    if (isTaken[group] === 0) isOut.fill(1, group * size, (group + 1) * size);
  }
}

function groupValue(members: Float32Array, by: ExpertGroups['by']): number {
  let best = Number.NEGATIVE_INFINITY;
  let second = Number.NEGATIVE_INFINITY;
  for (const value of members) {
    if (value > best) [best, second] = [value, best];
    else if (value > second) second = value;
  }
  return by === 'best' ? best : best + second;
}

function requireFinite(logits: Float32Array, token: number): void {
  const expert = logits.findIndex((logit) => !Number.isFinite(logit));
  if (expert < 0) return;
  const expected = 'a finite number; look for NaN or infinity in x or the gate';
  throw invalidArgument(`logits[${token}][${expert}]`, logits[expert], expected);
}

function sigmoid(logits: Float32Array, out: Float32Array): void {
  for (const [expert, logit] of logits.entries()) out[expert] = 1 / (1 + Math.exp(-logit));
}

function softmax(logits: Float32Array, out: Float32Array): void {
  const most = logits.reduce((one, other) => Math.max(one, other));
  let sum = 0;
  for (const [expert, logit] of logits.entries()) {
    const power = Math.fround(Math.exp(Math.fround(logit - most)));
    out[expert] = power;
    sum = Math.fround(sum + power);
  }
  for (let expert = 0; expert < out.length; expert++) out[expert] = out[expert]! / sum;
}

/** The first of the largest that are not out, which it then is; one must not be. Whatever the values are, none is taken twice. */
function takeLargest(values: Float32Array, isOut: Uint8Array): number {
  let best = -1;
  for (let index = 0; index < values.length; index++) {
    if (isOut[index] === 0 && (best < 0 || values[index]! > values[best]!)) best = index;
  }
  isOut[best] = 1;
  return best;
}
