// The result document of the expert-parallel bench, made from the times of its cases.
import type { Settings } from '../../../settings/settings.ts';
import type { RowCounts } from './ep-traffic.ts';
import type { EpWorkload } from './ep-workload.ts';
import type { CaseTimes } from '../interleaved.ts';
import type { MachineDocument } from '../machine.ts';
import type { PlacementSample } from '../placement.ts';
import { type Summary, summarize, summarizePairs, summarizeRatios } from '../statistics.ts';

/** Written into every document, so that a number can be read without this source. */
export const method = {
  time: 'Microseconds from the begin of the first rank to the end of the last one, after a barrier.',
  logical: 'Bytes of every received row of all ranks, own rows included (fp8 rows with their scales).',
  wire: 'Bytes of rows that came from another rank.',
  ceiling:
    'The same processes copy each (token, destination rank) row once, token-major, to the place where dispatch puts it.',
  ratioToCeiling:
    'Logical bandwidth of the case over that of the ceiling in the same iteration; combine reads what the ceiling wrote.',
  ratioToCopyBack:
    'Of combine: bandwidth over that of copy back in the same iteration, which copies each of the same rows from the windows over the other rows of its token in a local tensor.',
  beyondCopying: 'Time of the case less the time that the ceiling of the same iteration takes for as many bytes.',
  placement:
    'Taken on rank 0 before and after. On virtual machines the round trip between two cores may jump, and copies between processes with it: compare runs with similar values only.',
} as const;

/** What one case moves in one iteration, over all ranks. */
export interface CaseTraffic {
  readonly name: string;
  readonly description: string;
  readonly rows: RowCounts;
  readonly rowBytes: number;
  /** Of a combine: the name of the case that copies its rows back. */
  readonly copyBack?: string;
}

/** What any case moved and how quickly. */
export interface MovedRows {
  readonly name: string;
  readonly description: string;
  readonly logicalRows: number;
  readonly wireRows: number;
  readonly rowBytes: number;
  readonly microseconds: Summary;
  /** GB/s (1e9 bytes) of all ranks together. */
  readonly logicalGBps: Summary;
  readonly wireGBps: Summary;
  readonly logicalGBpsPerRank: Summary;
}

export interface CaseResult extends MovedRows {
  readonly startSkewMicroseconds: Summary;
  readonly ratioToCeiling: Summary;
  /** Only of combine. */
  readonly ratioToCopyBack?: Summary;
  readonly beyondCopyingMicroseconds: Summary;
}

export interface EpBenchMemory {
  /** Address space of one rank that the windows of all ranks of its host take. */
  readonly bufferWindowsBytes: number;
  readonly layerWindowsBytes: number | undefined;
  /** Everything that rank 0 holds in its device memory while the cases run, windows included. */
  readonly deviceBytes: number;
  /** What DeepEP's own size hint asks for in the same configuration, per rank. */
  readonly deepEpHintBytes: number | undefined;
}

export interface EpBenchReport {
  readonly schema: 'weftline.bench.ep/1';
  readonly date: string;
  readonly method: typeof method;
  readonly workload: EpWorkload;
  readonly warmup: number;
  readonly iterations: number;
  readonly machine: MachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly memory: EpBenchMemory;
  readonly cases: readonly CaseResult[];
}

/** The first case is the ceiling that the others are compared with. */
export function summarizeCases(
  times: readonly CaseTimes[],
  traffic: readonly CaseTraffic[],
  ranks: number,
): CaseResult[] {
  /** What the case at `index` would take in each iteration for so many bytes. */
  const timesFor = (index: number, bytes: number): number[] => {
    const { rows, rowBytes } = traffic[index] as CaseTraffic;
    const moved = rows.logical * rowBytes;
    return (times[index] as CaseTimes).times.map((time) => (moved === 0 ? 0 : (time * bytes) / moved));
  };
  return traffic.map((moved, index) => {
    const { rows, rowBytes, copyBack } = moved;
    const of = times[index] as CaseTimes;
    const bytes = rows.logical * rowBytes;
    const copying = timesFor(0, bytes);
    const back = traffic.findIndex((other) => other.name === copyBack);
    return {
      ...summarizeMoved(moved, of.times, ranks),
      startSkewMicroseconds: summarize(of.startSkews),
      ratioToCeiling: summarizeRatios(copying, of.times),
      ...(back === -1 ? {} : { ratioToCopyBack: summarizeRatios(timesFor(back, bytes), of.times) }),
      beyondCopyingMicroseconds: summarizePairs(of.times, copying, (time, copy) => time - copy),
    };
  });
}

export function summarizeMoved(
  { name, description, rows, rowBytes }: CaseTraffic,
  times: readonly number[],
  ranks: number,
): MovedRows {
  const bytes = rows.logical * rowBytes;
  return {
    name,
    description,
    logicalRows: rows.logical,
    wireRows: rows.wire,
    rowBytes,
    microseconds: summarize(times),
    logicalGBps: bandwidth(bytes, times),
    wireGBps: bandwidth(rows.wire * rowBytes, times),
    logicalGBpsPerRank: bandwidth(bytes / ranks, times),
  };
}

function bandwidth(bytes: number, microseconds: readonly number[]): Summary {
  return summarize(microseconds.map((time) => bytes / time / 1000));
}
