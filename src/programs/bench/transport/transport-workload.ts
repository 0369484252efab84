// What the transport bench moves: its parameters, their defaults, what they mean in bytes.
import { invalidArgument } from '../../../core/errors.ts';

/** As UCCL's transport_test names them, its two programs over many ranks, and several engines beside several processes. */
export const transportPatterns = ['basic', 'lat', 'tpt', 'bi', 'incast', 'permutation', 'engines'] as const;
export type TransportPattern = (typeof transportPatterns)[number];

export interface TransportWorkload {
  readonly perftype: TransportPattern;
  /** Flows of a connection, each with requests of its own. */
  readonly nflow: number;
  /** Messages of a request: it ends when all of them have. */
  readonly nmsg: number;
  /** Requests of a flow that are under way at a time. */
  readonly nreq: number;
  /** Bytes of a message. */
  readonly msize: number;
  /** Messages of basic, rounds of lat, requests of each flow otherwise; 0: until `seconds` are over. */
  readonly iterations: number;
  readonly seconds: number;
  /** Rounds of lat, or a second of the others, before anything counts. */
  readonly warmup: boolean;
  /** Both sides send and receive. */
  readonly bi: boolean;
}

export const defaultTransportWorkload: TransportWorkload = {
  perftype: 'tpt',
  nflow: 4,
  nmsg: 1,
  nreq: 2,
  msize: 1_000_000,
  iterations: 0,
  seconds: 5,
  warmup: false,
  bi: false,
};

/** Of a message of basic, which every word of is checked. */
export const BASIC_BYTES = 65_536;
export const BASIC_ITERATIONS = 8;
export const LATENCY_ITERATIONS = 10_000;
export const LATENCY_WARMUP = 1000;
const MAX_REGION_BYTES = 1 << 30;

/** Fails with WL_INVALID_ARGUMENT. */
export function checkTransportWorkload(workload: TransportWorkload): void {
  const { nflow, nmsg, nreq, msize } = workload;
  for (const [name, value, most] of [
    ['nflow', nflow, 1024],
    ['nmsg', nmsg, 64],
    ['nreq', nreq, 256],
    ['msize', msize, MAX_REGION_BYTES],
  ] as const) {
    if (!Number.isInteger(value) || value < 1 || value > most) throw invalidArgument(name, value, `1 to ${most}`);
  }
  if (nflow * nmsg * nreq > 1024)
    throw invalidArgument('--nflow * --nmsg * --nreq', nflow * nmsg * nreq, 'at most 1024');
  if (messagesUnderWay(workload) * msize > MAX_REGION_BYTES) {
    const bytes = messagesUnderWay(workload) * msize;
    throw invalidArgument('--nflow * --nmsg * --nreq * --msize', bytes, 'at most 1 GiB under way');
  }
}

/** Messages of one direction that are under way at a time. */
export function messagesUnderWay({ nflow, nmsg, nreq }: TransportWorkload): number {
  return nflow * nmsg * nreq;
}
