// The result document of the P2P bench.
import type { BackendVerdict } from '../../../agent/index.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { MachineDocument } from '../machine.ts';
import type { PlacementSample } from '../machine.ts';
import type { Summary } from '../harness.ts';
import type { P2pWorkload } from './p2p-workload.ts';

/** Written into every document, so that a number can be read without this source. */
export const p2pMethod = {
  size: 'Bytes of all messages over the time from the first post to the last end, at the client; of mode send the server measures what it receives by itself. Units of 1e9.',
  block:
    'One transfer of a batch of blocks, posted again and again, one under way: transfer from post to done, post the call alone, preparation with connection and peer known.',
  descriptors:
    'One transfer of blocks of 64 bytes, 128 apart, in no order, with connection and peer known: lists is DescriptorList.blocks and select of both sides, prepare the call alone, move from post to done; memory is what the process grew by over both, the lists included.',
  ping: 'A write of 256 bytes with a notification there, and the same back; both processes wait blocking.',
  memcpy:
    'The C library copies as many bytes from the same source to memory of the same kind in the same process, message by message in turn with the path, after 20,000 small messages of each and a round that does not count; the median of each round counts.',
  transport: 'bench transport --perftype tpt between the same processes, with its usual 4 flows of 2 requests.',
  ucx_perftest:
    'ucx_perftest of UCX between the same hosts with the same size and as many messages under way: ucp_put_bw for writes and ucp_get for reads, over all its messages; round trips beside twice the median of tag_lat, which measures one way.',
  host: 'Transfers of the same size between host memory of the same processes over the same path, as many under way.',
  interleaved: 'Sides of one round follow each other; ratios are taken within a round.',
} as const;

export interface SizeResult {
  readonly bytes: number;
  readonly iterations: number;
  readonly inflight: number;
  readonly seconds: number;
  /** 1e9 bits, and bytes, per second. */
  readonly gbps: number;
  readonly gigabytesPerSecond: number;
}

export interface BlockResult {
  readonly blockBytes: number;
  readonly batch: number;
  readonly gigabytesPerSecond: number;
  /** Of one block. */
  readonly latencyMicroseconds: number;
  readonly prepareMicroseconds: Tail;
  readonly postMicroseconds: Tail;
  readonly transferMicroseconds: Tail;
}

export interface DescriptorsResult {
  readonly count: number;
  readonly parts: number;
  readonly listMilliseconds: number;
  readonly prepareMilliseconds: number;
  readonly postMilliseconds: number;
  /** From the post to the end. */
  readonly moveMilliseconds: number;
  readonly residentBytes: number;
}

export interface Tail {
  readonly average: number;
  readonly p99: number;
}

export interface CeilingResult {
  readonly bytes: number;
  readonly ceiling: 'memcpy' | 'transport' | 'ucx_perftest' | 'host';
  /** GB/s of each round. */
  readonly own: readonly number[];
  readonly ceilings: readonly number[];
  readonly ratio: Summary;
}

/** A size that --compare left out. */
export interface NotCompared {
  readonly bytes: number;
  readonly why: string;
}

/** Of round trips. */
export interface PingCeilingResult {
  readonly ceiling: 'ucx_perftest';
  /** Microseconds of each round: its median. */
  readonly own: readonly number[];
  readonly ceilings: readonly number[];
  readonly ratio: Summary;
}

export interface P2pBenchReport {
  readonly schema: 'weftline.bench.p2p/1';
  readonly date: string;
  readonly method: typeof p2pMethod;
  readonly workload: P2pWorkload;
  readonly device: 'cpu' | 'gpu';
  readonly backend: string;
  readonly verdicts: readonly BackendVerdict[];
  readonly machine: MachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly placement: { readonly before: PlacementSample; readonly after: PlacementSample };
  readonly sizes: readonly SizeResult[];
  readonly blocks?: readonly BlockResult[];
  readonly descriptors?: DescriptorsResult;
  /** Microseconds: min, P50, P90, P99, P99.9, max. */
  readonly pingMicroseconds?: readonly number[];
  readonly ceilings?: readonly CeilingResult[];
  readonly notCompared?: readonly NotCompared[];
  readonly pingCeiling?: PingCeilingResult;
}
