// The result document of the low-latency bench: percentiles of the slowest rank.
import { quantile } from '../../../../core/quantile.ts';
import type { Settings } from '../../../../settings/settings.ts';
import type { MachineDocument } from '../../machine.ts';
import type { PlacementSample } from '../../placement.ts';
import type { EpWorkload } from '../ep-workload.ts';

/** How rows stand, and what of them travels back: see LowLatencyConfig. */
export const lowLatencyVariants = ['rank-sums', 'choices', 'rank-major'] as const;
export type LowLatencyVariant = (typeof lowLatencyVariants)[number];

/** Written into every document, so that a number can be read without this source. */
export const lowLatencyMethod = {
  slowest: 'Each sample is the longest time of any rank; percentiles are of the samples, in microseconds.',
  dispatch: 'From the call to its result, after a barrier.',
  combine:
    'From the call to its result, after a barrier. In variants other than rank-sums y lies in nextCombineBuffer.',
  pair: 'Period of dispatch and combine in a chain without barriers; the experts between them compute nothing.',
  parts:
    'Send: the call with returnRecvHook, after a barrier. Receive: the hook, after another barrier, so that it waits for nobody.',
} as const;

export interface Percentiles {
  readonly count: number;
  readonly p50: number;
  readonly p99: number;
}

export interface LowLatencyCaseResult {
  readonly name: string;
  readonly dtype: 'fp8' | 'bf16';
  readonly microseconds: Percentiles;
}

export interface LowLatencyBenchReport {
  readonly schema: 'weftline.bench.ep.low-latency/1';
  readonly date: string;
  readonly method: typeof lowLatencyMethod;
  readonly variant: LowLatencyVariant;
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly warmup: number;
  readonly iterations: number;
  readonly pairs: number;
  readonly machine: MachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly windowsBytes: number;
  readonly cases: readonly LowLatencyCaseResult[];
}

/** `byRank[r][i]`: sample i of rank r. */
export function slowestRank(byRank: readonly (readonly number[])[]): Percentiles {
  return percentilesOf(slowestOf(byRank));
}

/** The same, sample by sample. */
export function slowestOf(byRank: readonly (readonly number[])[]): number[] {
  return (byRank[0] ?? []).map((_, at) => Math.max(...byRank.map((samplesOf) => samplesOf[at]!)));
}

export function percentilesOf(samples: readonly number[]): Percentiles {
  const sorted = samples.toSorted((a, b) => a - b);
  return { count: sorted.length, p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) };
}
