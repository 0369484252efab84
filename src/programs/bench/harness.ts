// What every benchmark does: cases in turn, iteration by iteration, on all ranks at once; samples of all ranks; medians and spread.
import { invalidArgument } from '../../core/errors.ts';
import { quantile } from '../../core/quantile.ts';
import { seededRandom } from '../../core/seeded-random.ts';

/** Microseconds since the host started (CLOCK_MONOTONIC), so that times of different ranks can be subtracted. */
export function monotonicMicroseconds(): number {
  return Number(process.hrtime.bigint()) / 1000;
}

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
  const [min, p25, median, p75, max] = [0, 0.25, 0.5, 0.75, 1].map((share) => quantile(sorted, share));
  return { count: sorted.length, min: min!, p25: p25!, median: median!, p75: p75!, max: max! };
}

/**
 * Summary of numerator[i] / denominator[i]. Sides of one iteration see the same state of the machine, so that their
 * ratio is steadier than the ratio of their medians.
 */
export function summarizeRatios(numerators: readonly number[], denominators: readonly number[]): Summary {
  return summarizePairs(numerators, denominators, (a, b) => a / b);
}

export function summarizeDifferences(first: readonly number[], second: readonly number[]): Summary {
  return summarizePairs(first, second, (a, b) => a - b);
}

function summarizePairs(
  first: readonly number[],
  second: readonly number[],
  combine: (a: number, b: number) => number,
): Summary {
  if (first.length !== second.length) {
    throw invalidArgument('paired measurements', [first.length, second.length], 'the same number on both sides');
  }
  return summarize(first.map((value, index) => combine(value, second[index]!)));
}

/** GB/s (1e9 bytes) of so many bytes in each of these times. */
export function summarizeRates(bytes: number, microseconds: readonly number[]): Summary {
  return summarize(microseconds.map((time) => bytes / time / 1000));
}

export function percentilesOf(samples: readonly number[]) {
  const sorted = samples.toSorted((a, b) => a - b);
  return { count: sorted.length, p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) };
}

/** What quantilesOf() gives, by its place. */
export const latencyQuantiles = ['min', 'P50', 'P90', 'P99', 'P99.9', 'max'] as const;

export function quantilesOf(times: readonly number[]): number[] {
  const counted = times.toSorted((a, b) => a - b);
  return [0, 0.5, 0.9, 0.99, 0.999, 1].map((share) => (counted.length === 0 ? 0 : quantile(counted, share)));
}

/** The ranks that take part; a World is one. */
export interface BenchGroup {
  readonly rank: number;
  readonly size: number;
  barrier(name: string): Promise<void>;
  allGather<T>(name: string, value: T): Promise<T[]>;
}

/** Told the rounds that are done, of so many. */
export type Progress = (done: number, total: number) => void;

export interface Rounds {
  readonly warmup: number;
  readonly iterations: number;
  readonly progress?: Progress | undefined;
  /** The order of the cases in an iteration, the same on every rank; another one each time by default. */
  readonly order?: (count: number, iteration: number) => readonly number[];
}

/** Calls `measure` for each case in turn, in every iteration in another order; in warm-up rounds iteration is negative. */
async function interleave(
  count: number,
  { warmup, iterations, progress, order = shuffled }: Rounds,
  measure: (index: number, iteration: number) => Promise<void>,
): Promise<void> {
  for (let iteration = -warmup; iteration < iterations; iteration += 1) {
    for (const index of order(count, iteration)) await measure(index, iteration);
    progress?.(iteration + warmup + 1, warmup + iterations);
  }
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

/** What all ranks have measured of one case. */
export class Samples<Figure extends string> {
  /** The figures of each rank, an element per iteration. */
  readonly ranks: readonly Readonly<Record<Figure, readonly number[]>>[];

  constructor(ranks: readonly Readonly<Record<Figure, readonly number[]>>[]) {
    this.ranks = ranks;
  }

  /** A value for each iteration, from those of the ranks. */
  across(figure: Figure, reduce: (values: readonly number[]) => number): number[] {
    return this.ranks[0]![figure].map((_, iteration) => reduce(this.ranks.map((rank) => rank[figure][iteration]!)));
  }

  /** The largest value of any rank in each iteration. */
  slowest(figure: Figure): number[] {
    return this.across(figure, (values) => Math.max(...values));
  }
}

/**
 * Collective, if there is a group. Measures every case in each round, once or several times; every rank gets the samples of all ranks, by case.
 * Nothing is exchanged before the last iteration has ended.
 */
export async function measureInTurn<Case, Figure extends string>(
  group: BenchGroup | undefined,
  cases: readonly Case[],
  rounds: Rounds,
  measure: (one: Case) => Promise<Readonly<Partial<Record<Figure, number | readonly number[]>>>>,
): Promise<Samples<Figure>[]> {
  const mine = cases.map((): Partial<Record<Figure, number[]>> => ({}));
  await interleave(cases.length, rounds, async (index, iteration) => {
    const measured = Object.entries(await measure(cases[index]!)) as [Figure, number | number[]][];
    if (iteration < 0) return;
    for (const [figure, value] of measured) (mine[index]![figure] ??= []).push(...[value].flat());
  });
  const all: Samples<Figure>[] = [];
  // One case at a time: a value of the store has a limit, which all cases of many iterations would exceed.
  for (const one of mine as Record<Figure, number[]>[]) {
    all.push(new Samples(group === undefined ? [one] : await group.allGather('bench-samples', one)));
  }
  return all;
}

/** Microseconds of each case in a process of its own, by iteration. */
export async function timeInTurn(cases: readonly Omit<BenchCase, 'name'>[], rounds: Rounds): Promise<number[][]> {
  const samples = await measureInTurn(undefined, cases, rounds, async ({ prepare, run, after }) => {
    await prepare?.();
    const begin = monotonicMicroseconds();
    const running = run();
    if (running instanceof Promise) await running;
    const time = monotonicMicroseconds() - begin;
    await after?.();
    return { time };
  });
  return samples.map((of) => of.slowest('time'));
}

export interface BenchCase {
  readonly name: string;
  /** Brings the inputs into the state that the case expects; not timed. */
  readonly prepare?: (() => unknown) | undefined;
  readonly run: () => unknown;
  /** Does what others must not wait for, and undoes; not timed. */
  readonly after?: (() => unknown) | undefined;
}

/** How much a bench measures. */
export interface BenchEffort {
  readonly iterations: number;
  readonly warmup: number;
  readonly pairs: number;
  readonly sms: readonly number[];
  /** True: the bare copies have one usual shape; else the fastest of all that fit is sought. */
  readonly isOneShape: boolean;
}

const FEW_ROUNDS = 3;
const FEW_PAIRS = 4;

/**
 * Where ranks share a GPU, kernels of two processes take turns in slices of a millisecond or two, so that calls that wait for
 * each other take as long as such slices, whatever the library does: enough to see that it runs, within a minute.
 */
export function effortOnSharedGpus({ iterations, pairs, sms }: BenchEffort): BenchEffort {
  return {
    iterations: Math.min(iterations, FEW_ROUNDS),
    warmup: 0,
    pairs: Math.min(pairs, FEW_PAIRS),
    sms: sms.slice(0, 1),
    isOneShape: true,
  };
}

/** @param sharing Who shares what, of a DeviceChoice: "ranks 0 and 2 share GPU-…". */
export function sharedGpuNotice(sharing: string): string {
  return `${sharing}: the kernels of such ranks take turns in time slices, so the figures mean little; few rounds are run, with one shape of the bare copies. Give each rank a GPU of its own by a lower --ranks`;
}
