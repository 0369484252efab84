// Order statistics of repeated measurements, and ratios of two sides measured in the same iterations.
import { invalidArgument } from '../../core/errors.ts';
import { quantile } from '../../core/quantile.ts';

/** Median and spread; quartiles interpolate linearly between neighbours. */
export interface Summary {
  readonly count: number;
  readonly min: number;
  readonly p25: number;
  readonly median: number;
  readonly p75: number;
  readonly max: number;
}

export function summarize(values: readonly number[]): Summary {
  if (values.length === 0) throw invalidArgument('values', values, 'at least one measurement');
  const sorted = values.toSorted((a, b) => a - b);
  return {
    count: sorted.length,
    min: sorted[0] as number,
    p25: quantile(sorted, 0.25),
    median: quantile(sorted, 0.5),
    p75: quantile(sorted, 0.75),
    max: sorted.at(-1) as number,
  };
}

/**
 * Summary of numerator[i] / denominator[i]. Sides of one iteration see the same state of the machine, so that their
 * ratio is steadier than the ratio of their medians.
 */
export function summarizeRatios(numerators: readonly number[], denominators: readonly number[]): Summary {
  return summarizePairs(numerators, denominators, (a, b) => a / b);
}

/** Summary of combine(first[i], second[i]). */
export function summarizePairs(
  first: readonly number[],
  second: readonly number[],
  combine: (a: number, b: number) => number,
): Summary {
  if (first.length !== second.length) {
    throw invalidArgument('paired measurements', [first.length, second.length], 'the same number on both sides');
  }
  return summarize(first.map((value, index) => combine(value, second[index] as number)));
}
