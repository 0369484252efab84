// What `weftline sim collective` prints: how long a collective took against what its links allow, and what was lost on the way.
import { formatBytes } from '../../core/byte-size.ts';
import type { CollectiveRunResult } from '../sim/collective/collective-run.ts';

/** What was simulated. */
export interface SimCollectiveDescription {
  readonly collective: 'all-reduce' | 'all-to-all' | 'sparse-all-reduce';
  readonly algorithm: string;
  readonly network: string;
  /** Hosts that have a tensor, and of a sparse all-reduce those that add up. */
  readonly hosts: number;
  readonly aggregators: number;
  /** Of a host. */
  readonly bytes: number;
  readonly density?: number;
  readonly gigabitsPerSecond: number;
  readonly rails: number;
  readonly paths: number;
  readonly congestion: string;
  readonly seed: number;
}

/** GB/s as nccl-tests counts it: what a link would have to carry if the algorithm were the best. */
function busBandwidth({ collective, hosts, bytes }: SimCollectiveDescription, microseconds: number): number {
  const factor = { 'all-reduce': 2, 'all-to-all': 1, 'sparse-all-reduce': 2 }[collective];
  return microseconds === 0 ? 0 : (factor * (hosts - 1) * bytes) / hosts / microseconds / 1000;
}

export function simCollectiveReport(about: SimCollectiveDescription, result: CollectiveRunResult): string {
  const { collective, algorithm, network, hosts, aggregators, bytes, density, gigabitsPerSecond, rails, paths } = about;
  const { microseconds, bounds, messages, arrived, longestQueueBytes } = result;
  const { sent, droppedFull, droppedLoss } = result.network;
  const bound = Math.max(bounds.bytesMicroseconds, bounds.stepsMicroseconds);
  const who = aggregators === 0 ? `${hosts} hosts` : `${hosts} workers, ${aggregators} aggregators`;
  const share = density === undefined ? '' : `, ${Number((density * 100).toPrecision(3))} % of blocks`;
  const cards = rails === 1 ? '' : `, ${rails} rails`;
  return [
    `${collective}, ${algorithm}: ${who} on ${network}, ${gigabitsPerSecond} Gbps per host${cards}; ${paths} ${paths === 1 ? 'path' : 'paths'}, congestion control ${about.congestion}, seed ${about.seed}`,
    `${formatBytes(bytes)} per host${share}: ${microseconds.toFixed(1)} µs, bus ${busBandwidth(about, microseconds).toFixed(2)} GB/s`,
    `at least ${bounds.bytesMicroseconds.toFixed(1)} µs for the bytes of the busiest host, ${bounds.stepsMicroseconds.toFixed(1)} µs for messages that wait for each other; ${microseconds === 0 ? '1.000' : (bound / microseconds).toFixed(3)} of what these allow`,
    `most sent ${formatBytes(Math.round(result.mostSentBytes))}, most received ${formatBytes(Math.round(result.mostReceivedBytes))}; ${messages} messages, ${sent} packets, ${droppedFull} dropped by full queues, ${droppedLoss} at random; longest queue ${formatBytes(Math.round(longestQueueBytes))}; ${result.events} events`,
    arrived === messages ? 'All messages came.' : `${arrived} of ${messages} messages came: ${result.end}`,
    '',
  ].join('\n');
}
