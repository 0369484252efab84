// The result document of the expert-parallel bench across hosts, made from the times of all ranks.
import type { Settings } from '../../../../settings/settings.ts';
import type { EpWorkload } from '../ep-workload.ts';
import type { MachineDocument } from '../../machine.ts';
import type { PlacementSample } from '../../placement.ts';
import { type Summary, summarize, summarizeRatios } from '../../statistics.ts';
import type { HostRows } from './host-traffic.ts';
import { type Phase, phaseNames } from './phase-times.ts';
import type { RankTimes } from './time-on-hosts.ts';
import type { PairPeriod } from './time-pairs.ts';

/** Written into every document, so that a number can be read without this source. */
export const hostMethod = {
  time: 'Microseconds of the slowest rank, each by its own clock, from a barrier of all ranks to the end of its call.',
  network:
    'GB/s (1e9 bytes) of all ranks together that cross from host to host; counted is the least there can be: each row once per (token, host).',
  sent: 'Bytes that puts really carried, with what travels beside the rows.',
  carrier:
    'The same ranks send the same number of bytes over the same channels, as one contiguous put per peer and channel.',
  ratioToCarrier: 'Bandwidth of the call over that of the carrier in the same direction and iteration.',
  networkPhase:
    'From the first row that is queued or summed until nothing of the call is under way to or from the slowest rank; the rows of this host move meanwhile.',
  phases:
    'Time of the thread that calls, mean of the ranks: network is the whole of that phase and contains the ones from queue to own sums.',
  pairs: 'Calls in turn without a barrier; the median and 99th percentile of the rank that has the largest.',
} as const;

/** What one case moves in one iteration, over all ranks. */
export interface HostCaseTraffic {
  readonly name: string;
  readonly description: string;
  readonly rows: HostRows;
  readonly rowBytes: number;
  /** Name of the case that sends as many bytes bare; that one itself has none. */
  readonly carrier?: string;
}

export interface HostCaseResult {
  readonly name: string;
  readonly description: string;
  readonly rows: HostRows;
  readonly rowBytes: number;
  /** The least that can cross. */
  readonly networkBytes: number;
  /** Of rows that move from rank to rank within a host. */
  readonly hostBytes: number;
  readonly sentBytes: number;
  readonly microseconds: Summary;
  readonly networkGBps: Summary;
  readonly ratioToCarrier?: Summary;
  readonly networkPhase?: {
    readonly microseconds: Summary;
    readonly networkGBps: Summary;
    readonly ratioToCarrier: Summary;
  };
  /** Medians, those that the case has. */
  readonly phases: Readonly<Partial<Record<Phase, number>>>;
}

export interface EpHostBenchReport {
  readonly schema: 'weftline.bench.ep.hosts/1';
  readonly date: string;
  readonly method: typeof hostMethod;
  readonly device: 'cpu' | 'cuda';
  /** Multiprocessors of each GPU that calls use. */
  readonly numSms?: number;
  readonly workload: EpWorkload;
  /** Ranks of each host. */
  readonly hosts: readonly (readonly number[])[];
  /** Backends that carry between hosts, and channels per peer. */
  readonly carriers: readonly string[];
  readonly channels: number;
  readonly warmup: number;
  readonly iterations: number;
  readonly machine: MachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly pairs: readonly PairPeriod[];
  readonly cases: readonly HostCaseResult[];
}

/** `times`: [case][rank]. */
export function summarizeHostCases(
  times: readonly (readonly RankTimes[])[],
  traffic: readonly HostCaseTraffic[],
): HostCaseResult[] {
  const slowest = times.map((ranks) => acrossRanks(ranks.map(({ microseconds }) => microseconds)).map(largest));
  return traffic.map((moved, index) => {
    const { name, description, rows, rowBytes, carrier } = moved;
    const ranks = times[index]!;
    const networkBytes = rows.network * rowBytes;
    const own = slowest[index]!;
    const bare = traffic.findIndex((other) => other.name === carrier);
    const phases = phasesOf(ranks);
    return {
      name,
      description,
      rows,
      rowBytes,
      networkBytes,
      hostBytes: (rows.ownHost + rows.forwarded) * rowBytes,
      sentBytes: summarize(acrossRanks(ranks.map(({ sentBytes }) => sentBytes)).map(total)).median,
      microseconds: summarize(own),
      networkGBps: bandwidth(networkBytes, own),
      ...(bare === -1 ? {} : compare(ranks, { own, networkBytes, carried: carriedTime(bare, networkBytes) })),
      phases,
    };
  });

  /** What the carrier would take in each iteration for so many bytes. */
  function carriedTime(bare: number, bytes: number): number[] {
    const { rows, rowBytes } = traffic[bare]!;
    const carried = rows.network * rowBytes;
    return slowest[bare]!.map((time) => (carried === 0 ? 0 : (time * bytes) / carried));
  }
}

function compare(
  ranks: readonly RankTimes[],
  of: { readonly own: readonly number[]; readonly networkBytes: number; readonly carried: readonly number[] },
): Pick<HostCaseResult, 'ratioToCarrier' | 'networkPhase'> {
  const phase = phaseNames.indexOf('network');
  const network = acrossRanks(ranks.map(({ phases }) => phases[phase]!)).map(largest);
  return {
    ratioToCarrier: summarizeRatios(of.carried, of.own),
    // Kernels do not tell.
    ...(network.every((time) => time > 0) && {
      networkPhase: {
        microseconds: summarize(network),
        networkGBps: bandwidth(of.networkBytes, network),
        ratioToCarrier: summarizeRatios(of.carried, network),
      },
    }),
  };
}

function phasesOf(ranks: readonly RankTimes[]): Partial<Record<Phase, number>> {
  const result: Partial<Record<Phase, number>> = {};
  for (const [index, phase] of phaseNames.entries()) {
    const means = acrossRanks(ranks.map(({ phases }) => phases[index]!)).map((all) => total(all) / all.length);
    const { median } = summarize(means);
    if (median > 0) result[phase] = median;
  }
  return result;
}

/** [iteration][rank] of [rank][iteration]. */
function acrossRanks(byRank: readonly (readonly number[])[]): number[][] {
  return byRank[0]!.map((_, iteration) => byRank.map((of) => of[iteration]!));
}

function largest(values: readonly number[]): number {
  return Math.max(...values);
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function bandwidth(bytes: number, microseconds: readonly number[]): Summary {
  return summarize(microseconds.map((time) => bytes / time / 1000));
}
