// What a simulated call of expert parallelism took, phase by phase, against what links and memory allow.
import type { NetworkCounts } from '../link.ts';
import type { TransportCounts } from '../pattern-result.ts';
import type { RunEnd } from '../simulation.ts';
import type { EpBounds } from './ep-bounds.ts';

/** Microseconds, of the slowest rank. */
export interface EpPhaseResult {
  /** From the beginning until every host has met. */
  readonly meeting: number;
  /** From then until the last rows have arrived. */
  readonly rows: number;
  /** From then until every host is done: what was left to copy or to add, acks, barriers. */
  readonly tail: number;
  readonly total: number;
  readonly bounds: EpBounds;
  /** What the links would allow if rows crossed the network by the other rule. */
  readonly otherRows: number;
  /** When the last rows of each rank arrived, after its host had met. */
  readonly arrivals: { readonly p50: number; readonly max: number };
  /** Bytes of rows that cross the network, without headers, of all simulated ranks together. */
  readonly rowBytes: number;
  /** The links to ranks, those with the most bytes first. */
  readonly incast: readonly EpIncast[];
  readonly meanLinkBytes: number;
  readonly dropped: number;
}

export interface EpIncast {
  readonly host: number;
  /** Among those of the host. */
  readonly rank: number;
  /** Bytes that passed the links to the rank, with headers, and the longest queue before one of them. */
  readonly bytes: number;
  readonly queueBytes: number;
}

/** The state at one moment; rates are those since the sample before. */
export interface EpSample {
  readonly at: number;
  /** Of the first simulated rank of each host: into it, Gbps with headers; and bytes before its links. */
  readonly intoGbps: readonly number[];
  readonly queueBytes: readonly number[];
}

export interface EpResult {
  readonly end: RunEnd;
  readonly dispatch: EpPhaseResult;
  readonly combine: EpPhaseResult;
  readonly network: NetworkCounts;
  readonly transport: TransportCounts;
  readonly events: number;
  readonly mostPackets: number;
  /** Before any link but those of the senders. */
  readonly longestQueueBytes: number;
  readonly samples: readonly EpSample[];
}
