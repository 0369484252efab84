// The headline: dispatch and combine in turn, as the layers of a model call them, without a barrier between.
import { quantile } from '../../../../core/quantile.ts';
import type { BenchGroup } from '../../interleaved.ts';

/** One pair of calls, and what tidies up after it. */
export interface CallPair {
  readonly name: string;
  readonly dispatch: () => Promise<void>;
  readonly combine: () => Promise<void>;
  readonly tidy: () => void;
}

/** Microseconds from the end of one pair to that of the next one, of the rank that has the largest. */
export interface PairPeriod {
  readonly name: string;
  readonly pairs: number;
  readonly p50: number;
  readonly p99: number;
}

const WARMUP = 2;

/** Collective; every rank gets the same. */
export async function timePairs(
  group: BenchGroup,
  { name, dispatch, combine, tidy }: CallPair,
  pairs: number,
): Promise<PairPeriod> {
  const periods: number[] = [];
  await group.barrier('pairs');
  let before = performance.now();
  for (let pair = -WARMUP; pair < pairs; pair++) {
    await dispatch();
    await combine();
    tidy();
    const now = performance.now();
    if (pair >= 0) periods.push((now - before) * 1000);
    before = now;
  }
  const sorted = periods.toSorted((a, b) => a - b);
  const own = { p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) };
  const all = await group.allGather('bench-pairs-periods', own);
  return {
    name,
    pairs,
    p50: Math.max(...all.map(({ p50 }) => p50)),
    p99: Math.max(...all.map(({ p99 }) => p99)),
  };
}
