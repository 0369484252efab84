// Chooses the experts of each token from the gate's logits.
import { invalidArgument } from '../../core/errors.ts';

export interface RouterOptions {
  readonly experts: number;
  readonly topk: number;
  /** Divide the weights of the chosen experts by their sum. */
  readonly normalize: boolean;
}

/** Rows of `topk` choices per token, in descending order of weight. */
export interface Choices {
  /** [T, K] */
  readonly ids: BigInt64Array;
  /** [T, K] */
  readonly weights: Float32Array;
}

/**
 * Softmax over the logits [T, experts] of each token, then the largest `topk`; of equal ones the lower expert id comes
 * first. Fails with WL_INVALID_ARGUMENT if a logit is NaN or infinite.
 */
export function routeTopk(logits: Float32Array, { experts, topk, normalize }: RouterOptions): Choices {
  const tokens = logits.length / experts;
  const ids = new BigInt64Array(tokens * topk);
  const weights = new Float32Array(tokens * topk);
  const probabilities = new Float32Array(experts);
  for (let token = 0; token < tokens; token++) {
    softmax(logits.subarray(token * experts, (token + 1) * experts), probabilities, token);
    const first = token * topk;
    let sum = 0;
    for (let k = 0; k < topk; k++) {
      const best = largest(probabilities);
      const weight = probabilities[best]!;
      ids[first + k] = BigInt(best);
      weights[first + k] = weight;
      sum = Math.fround(sum + weight);
      // Out of the running: below every probability.
      probabilities[best] = -1;
    }
    if (!normalize) continue;
    for (let k = first; k < first + topk; k++) weights[k] = weights[k]! / sum;
  }
  return { ids, weights };
}

function softmax(logits: Float32Array, out: Float32Array, token: number): void {
  let most = Number.NEGATIVE_INFINITY;
  for (const [expert, logit] of logits.entries()) {
    if (!Number.isFinite(logit)) {
      throw invalidArgument(
        `logits[${token}][${expert}]`,
        logit,
        'a finite number; look for NaN or infinity in x or the gate',
      );
    }
    most = Math.max(most, logit);
  }
  let sum = 0;
  for (const [expert, logit] of logits.entries()) {
    const power = Math.fround(Math.exp(Math.fround(logit - most)));
    out[expert] = power;
    sum = Math.fround(sum + power);
  }
  for (let expert = 0; expert < out.length; expert++) out[expert] = out[expert]! / sum;
}

function largest(values: Float32Array): number {
  let best = 0;
  for (let index = 1; index < values.length; index++) {
    if (values[index]! > values[best]!) best = index;
  }
  return best;
}
