// Chooses the experts of each token from the gate's logits.
import { invalidArgument } from '../../core/errors.ts';

export interface RouterOptions {
  readonly experts: number;
  readonly topk: number;
  /** Divide the weights of the chosen experts by their sum. */
  readonly normalize: boolean;
  /** What becomes of logits: a softmax over all experts (default), or a sigmoid of each. */
  readonly scoring?: 'softmax' | 'sigmoid';
  /** Only experts of the best groups may be chosen. */
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
