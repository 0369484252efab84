// The result document of the transport bench.
import type { Settings } from '../../../settings/settings.ts';
import type { MachineDocument } from '../machine.ts';
import type { PlacementSample } from '../machine.ts';
import type { Summary } from '../harness.ts';
import type { TransportWorkload } from './transport-workload.ts';

/** Written into every document, so that a number can be read without this source. */
export const transportMethod = {
  goodput: 'Bytes of messages that arrived, times 8, over the time from the first post to the last end at the sender.',
  latency:
    'One message under way. From the offer of memory by the receiver to the end of its receive, so that the way of the offer is in it: comparable to a round trip.',
  request: 'From posting the messages of a request to the end of the last of them, at the sender.',
  bare: 'The same system calls without a protocol: same datagrams, same number per send, headers and payload apart, a window of 2 MiB, nothing is placed or checked. The ping-pong polls and never sleeps.',
  tcp: 'iperf3 with one connection and writes of 1 MiB, what its receiver counted.',
  interleaved: 'Sides of one round follow each other within seconds; ratios are taken within a round.',
  cpu: 'User and system time of all threads of the process, over the bytes of messages.',
  idle: 'Share of one core that the process uses while it is connected and nothing happens.',
} as const;

/** Microseconds in the order of latencyQuantiles. */
export type Quantiles = readonly number[];

export interface ThroughputResult {
  /** Of each round, in Gbps. */
  readonly gbps: readonly number[];
  /** Only of runs in both directions: what this side received. */
  readonly receivedGbps?: readonly number[];
  readonly messages: number;
  readonly requestMicroseconds: Quantiles;
  readonly senderCpuSecondsPerGB: number;
  readonly receiverCpuSecondsPerGB: number;
}

export interface Comparison {
  readonly bareGbps: readonly number[];
  readonly tcpGbps: readonly number[];
  readonly ratioToBare: Summary;
  /** undefined where iperf3 is missing. */
  readonly ratioToTcp: Summary | undefined;
}

export interface LatencyResult {
  /** Microseconds in the order of latencyQuantiles. */
  readonly transport: Quantiles;
  readonly bareRoundTrip: Quantiles | undefined;
  readonly ratioOfMedians: number | undefined;
}

/** Of all paths of the connection, from its beginning on. */
export interface PathsAt {
  /** Since the bench began. */
  readonly seconds: number;
  readonly paths: readonly {
    readonly sentSegments: number;
    readonly lostSegments: number;
    /** Microseconds. */
    readonly smoothedRtt: number;
  }[];
}

export interface TransportBenchReport {
  readonly schema: 'weftline.bench.transport/1';
  readonly date: string;
  readonly method: typeof transportMethod;
  readonly workload: TransportWorkload;
  readonly segmentBytes: number;
  readonly paths: number;
  readonly segmentsPerSend: number;
  readonly machine: MachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  /** Of basic: messages every word of which was checked by the receiver. */
  readonly intact?: { readonly messages: number; readonly bytes: number };
  readonly throughput?: ThroughputResult;
  readonly comparison?: Comparison;
  readonly latency?: LatencyResult;
  /** Shares of one core; of this side and of the server. */
  readonly idle?: { readonly client: number; readonly server: number };
  /** At the beginning, each second and at the end of every round of tpt and bi; of this side. */
  readonly pathsOverTime: readonly PathsAt[];
  /** The transport's own counters at the end, of this side. */
  readonly statistics: unknown;
}
