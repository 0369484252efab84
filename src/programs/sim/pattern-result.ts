// What a run of a traffic pattern found: how fast, how fair, what was lost, and what theory would allow.
import { quantile } from '../../core/quantile.ts';
import type { NetworkCounts } from './link.ts';
import type { OutageEffect } from './outage.ts';
import type { RunEnd } from './simulation.ts';
import type { Theory } from './theory.ts';

/** The state at one moment; rates are those since the sample before. */
export interface Sample {
  /** Microseconds. */
  readonly at: number;
  /** Of each pair of source and destination, Gbps of payload. */
  readonly goodputGbps: readonly number[];
  /** Of the same, all paths together; null if unlimited. */
  readonly windowBytes: readonly (number | null)[];
  /** Of the same, the mean of the paths' smoothed round trips. Microseconds. */
  readonly roundTrip: readonly number[];
  /** Gbps of full packets that all senders together gave to each path, those sent again included. */
  readonly pathGbps: readonly number[];
  /** Gbps that all hosts together sent by each rail, headers of all layers included. */
  readonly railGbps: readonly number[];
  /** Longest queue before any link but the hosts' own. */
  readonly queueBytes: number;
}

/** Microseconds. */
interface CompletionTimes {
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
}

export interface PatternResult {
  readonly end: RunEnd;
  readonly messages: number;
  readonly completed: number;
  /** Simulated time until the last message arrived. */
  readonly microseconds: number;
  /** Payload of all flows over that time. */
  readonly goodputGbps: number;
  /** Jain's index of the flows' goodput: 1 if all are alike, 1/n if one has all. */
  readonly fairness: number;
  /** From the offer of a message to its arrival; undefined if none arrived. */
  readonly completion: CompletionTimes | undefined;
  readonly theory: Theory;
  /** Bytes that all hosts sent by each rail, headers of all layers included. */
  readonly railBytes: readonly number[];
  readonly outage: OutageEffect | undefined;
  readonly network: NetworkCounts;
  readonly transport: TransportCounts;
  readonly events: number;
  /** Before any link but the hosts' own. */
  readonly longestQueueBytes: number;
  /** Most packets that were under way together. */
  readonly mostPackets: number;
  readonly samples: readonly Sample[];
}

/** Sums over all connections' sending ends. */
interface TransportCounts {
  readonly segments: number;
  readonly retransmitted: number;
  /** Arrived more than once. */
  readonly duplicates: number;
  readonly timeouts: number;
  readonly acks: number;
}

export function completionTimes(times: readonly number[]): CompletionTimes | undefined {
  if (times.length === 0) return undefined;
  const sorted = times.toSorted((a, b) => a - b);
  return { p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99), max: quantile(sorted, 1) };
}

export function jainFairness(rates: readonly number[]): number {
  const sum = rates.reduce((total, rate) => total + rate, 0);
  const squares = rates.reduce((total, rate) => total + rate * rate, 0);
  return squares === 0 ? 1 : (sum * sum) / (rates.length * squares);
}
