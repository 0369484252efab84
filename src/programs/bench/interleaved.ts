// Times several cases in turn, iteration by iteration, on all ranks at once.
import { monotonicMicroseconds } from './clock.ts';
import { seededRandom } from '../../core/seeded-random.ts';

/** The ranks that take part; a World is one. */
export interface BenchGroup {
  readonly rank: number;
  readonly size: number;
  barrier(name: string): Promise<void>;
  allGather<T>(name: string, value: T): Promise<T[]>;
}

export interface BenchCase {
  readonly name: string;
  /** Not timed: brings the inputs into the state that the case expects. */
  prepare?(): void | Promise<void>;
  run(): void | Promise<void>;
}

export interface Rounds {
  readonly warmup: number;
  readonly iterations: number;
  readonly progress?: ((done: number, total: number) => void) | undefined;
  /** The order of the cases in an iteration, the same on every rank; another one each time by default. */
  readonly order?: (count: number, iteration: number) => readonly number[];
}

/** Calls `measure` for each case in turn, in every iteration in another order; in warm-up rounds iteration is negative. */
export async function interleave(
  count: number,
  { warmup, iterations, progress, order = shuffled }: Rounds,
  measure: (index: number, iteration: number) => Promise<void>,
): Promise<void> {
  for (let iteration = -warmup; iteration < iterations; iteration += 1) {
    for (const index of order(count, iteration)) await measure(index, iteration);
    progress?.(iteration + warmup + 1, warmup + iterations);
  }
}

export interface InterleavedOptions extends Rounds {
  /** Microseconds on a time line that all ranks share. */
  readonly now?: () => number;
}

/** Times of one case, an element per iteration, in microseconds. */
export interface CaseTimes {
  readonly name: string;
  /** From the first rank's begin to the last rank's end. */
  readonly times: readonly number[];
  /** From the first rank's begin to the last rank's begin: how much of the time is late starting. */
  readonly startSkews: readonly number[];
}

/** Collective. Every rank gets the same result; nothing is exchanged before the last iteration has ended. */
export async function runInterleaved(
  group: BenchGroup,
  cases: readonly BenchCase[],
  { now = monotonicMicroseconds, ...rounds }: InterleavedOptions,
): Promise<CaseTimes[]> {
  const { iterations } = rounds;
  const begins = cases.map(() => new Float64Array(iterations));
  const ends = cases.map(() => new Float64Array(iterations));
  await interleave(cases.length, rounds, async (index, iteration) => {
    const benchCase = cases[index] as BenchCase;
    await benchCase.prepare?.();
    await group.barrier('bench');
    const begin = now();
    await benchCase.run();
    const end = now();
    if (iteration < 0) return;
    (begins[index] as Float64Array)[iteration] = begin;
    (ends[index] as Float64Array)[iteration] = end;
  });
  const results: CaseTimes[] = [];
  // One case at a time: a value of the store has a limit, which all cases of many iterations would exceed.
  for (const [index, { name }] of cases.entries()) {
    const spans = await group.allGather('bench-spans', {
      begins: [...(begins[index] as Float64Array)],
      ends: [...(ends[index] as Float64Array)],
    });
    const first = (iteration: number): number => Math.min(...spans.map((rank) => rank.begins[iteration] as number));
    const last = (side: 'begins' | 'ends', iteration: number): number =>
      Math.max(...spans.map((rank) => rank[side][iteration] as number));
    const all = Array.from({ length: iterations }, (_, iteration) => iteration);
    results.push({
      name,
      times: all.map((iteration) => last('ends', iteration) - first(iteration)),
      startSkews: all.map((iteration) => last('begins', iteration) - first(iteration)),
    });
  }
  return results;
}

/**
 * The same order on every rank, another one in every iteration: what a case leaves in the caches and in flight to memory
 * must not always meet the same successor.
 */
export function shuffled(count: number, iteration: number): number[] {
  const next = seededRandom(iteration + 1);
  return Array.from({ length: count }, (_, index) => ({ index, key: next() }))
    .toSorted((a, b) => a.key - b.key)
    .map(({ index }) => index);
}
