// What is simulated of expert parallelism across hosts: its shape, the protocol's choices, the network and what is wrong with it.
import type { Settings } from '../../../settings/settings.ts';
import type { NicOptions } from '../simulated-io.ts';
import type { NetworkTopology } from '../topology.ts';
import type { Routing } from './routing.ts';
import type { ServeOrderName } from './serve-order.ts';

/** How often a row crosses the network: once for each host that needs it, or once for each expert that was chosen. */
export const rowRules = ['per-host', 'per-expert'] as const;
export type RowRule = (typeof rowRules)[number];

export interface EpShape {
  readonly hosts: number;
  readonly ranksPerHost: number;
  /** Of each rank. */
  readonly tokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly experts: number;
  /** Element type of rows in dispatch; combine sends bf16. */
  readonly dtype: 'bf16' | 'fp8';
}

/** What a protocol may choose. */
export interface EpProtocol {
  readonly rows: RowRule;
  /** Most bytes of rows behind which a signal is sent. */
  readonly chunkBytes: number;
  /** Bytes that may be under way to a rank from all others together; Infinity for any number. */
  readonly outstandingBytes: number;
  /** Rows that one write carries: 1 as they lie in memory, more to simulate less. */
  readonly rowsPerWrite: number;
  readonly order: ServeOrderName;
}

export interface EpOptions {
  readonly shape: EpShape;
  readonly protocol: EpProtocol;
  readonly routing: Routing;
  /** Whose hosts are the simulated ranks: rank i of host h is number h * simulatedRanks + i. */
  readonly topology: NetworkTopology;
  /** Ranks of each host that are simulated, with all their peers on other hosts. */
  readonly simulatedRanks: number;
  readonly paths: number;
  readonly engines: number;
  readonly segmentBytes: number;
  readonly pollDelay: number;
  readonly nic: NicOptions;
  readonly settings: Partial<Settings>;
  readonly seed: number;
  /** Ranks enter at random times up to this one. Microseconds. */
  readonly skew: number;
  /** Of a rank's copies and sums in the memory of its host. Bytes per microsecond. */
  readonly localRate: number;
  /** Of the barrier of a host's ranks. Microseconds. */
  readonly barrier: number;
  /** A host whose copies and sums take longer. */
  readonly slowHost?: { readonly host: number; readonly localFactor: number };
  /** Take samples this often, in microseconds; none if missing. */
  readonly sampleEvery?: number;
  /** Longest simulated time, in microseconds. */
  readonly until: number;
}
