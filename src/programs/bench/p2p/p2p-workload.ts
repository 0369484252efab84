// What the P2P bench moves: its parameters, their defaults, what they mean.
import { invalidArgument } from '../../../core/errors.ts';
import { defaultTransportWorkload, messagesUnderWay } from '../transport/transport-session.ts';
import { formatBytes } from '../../../core/byte-size.ts';

/** The first is what UCCL's benchmark.py does, and the default. */
export const p2pModes = ['send', 'write', 'read'] as const;
export type P2pMode = (typeof p2pModes)[number];

export interface P2pWorkload {
  readonly mode: P2pMode;
  readonly sizes: readonly number[];
  /** Messages of each size; in a sweep of blocks, transfers, and a sixteenth of them beyond 1 MiB. */
  readonly iterations: number;
  /** Messages that are under way at a time. */
  readonly inflight: number;
  /** Sweep of blocks and batches as nixlbench does it; undefined for none. */
  readonly blocks: BlockSweep | undefined;
  /** Rounds beside the ceiling of the path that was chosen; 0 for none. */
  readonly compare: number;
  /** Round trips of `PING_BYTES`; 0 for none. */
  readonly pings: number;
  /** Blocks of one transfer of very many; 0 for none. */
  readonly descriptors: number;
}

/** Both double from the first to the last. */
export interface BlockSweep {
  readonly startBlockBytes: number;
  readonly maxBlockBytes: number;
  readonly startBatch: number;
  readonly maxBatch: number;
}

/** Those of UCCL's benchmark.py. */
export const defaultSizes = [256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 10_485_760, 104_857_600] as const;
export const DEFAULT_ITERATIONS = 1000;
export const PING_BYTES = 256;
/** Of a block of the transfer of very many, and from one block to the next. */
export const DESCRIPTOR_BYTES = 64;
export const DESCRIPTOR_STRIDE = 128;
/** Of that transfer. */
export const MAX_DESCRIPTORS = 8_000_000;

const LARGE_BYTES = 1 << 20;
const LARGE_FACTOR = 16;
/** Of each side's memory that messages under way take. */
const MEMORY_BYTES = 1 << 30;

/** Sizes below are bound by other costs than bytes, and are not compared with the ceiling of their path. */
export const MIN_COMPARED_BYTES = 1 << 20;
/** Of the transport's bench, which is one of those ceilings: as many messages are under way beside it. */
export const COMPARED_SLOTS: number = messagesUnderWay(defaultTransportWorkload);

/** Fails with WL_INVALID_ARGUMENT. */
export function checkP2pWorkload({ sizes, inflight, blocks, descriptors, compare, pings }: P2pWorkload): void {
  for (const size of sizes) {
    if (!Number.isInteger(size) || size < 1 || size > MEMORY_BYTES) {
      throw invalidArgument('sizes', size, `1 to ${MEMORY_BYTES} bytes (${formatBytes(MEMORY_BYTES)})`);
    }
  }
  if (compare > 0 && pings === 0 && sizes.every((size) => size < MIN_COMPARED_BYTES)) {
    const expected = `with --compare a size of at least ${formatBytes(MIN_COMPARED_BYTES)}, as smaller ones are bound by other costs than bytes, or --pings`;
    throw invalidArgument('sizes', sizes, expected);
  }
  if (!Number.isInteger(descriptors) || descriptors < 0 || descriptors > MAX_DESCRIPTORS) {
    throw invalidArgument('descriptors', descriptors, `0 to ${MAX_DESCRIPTORS}`);
  }
  if (inflight < 1 || inflight > 256) throw invalidArgument('inflight', inflight, '1 to 256');
  if (blocks !== undefined && blocks.maxBlockBytes * blocks.maxBatch > MEMORY_BYTES) {
    throw invalidArgument(
      '--blocks times --batches',
      blocks.maxBlockBytes * blocks.maxBatch,
      `up to ${MEMORY_BYTES} bytes`,
    );
  }
}

/** As nixlbench does it: transfers of `bytes` in a sweep of blocks. */
export function sweepIterations(iterations: number, bytes: number): number {
  if (bytes <= LARGE_BYTES) return iterations;
  return Math.min(iterations, Math.max(16, Math.floor(iterations / LARGE_FACTOR)));
}

/** Messages of that size that are under way at a time: fewer where they would not fit. */
export function slotsOf(inflight: number, bytes: number): number {
  return Math.max(1, Math.min(inflight, Math.floor(MEMORY_BYTES / bytes)));
}

/** Bytes of memory that a side needs. */
export function memoryOf({ sizes, inflight, blocks, descriptors, compare }: P2pWorkload): number {
  const slots = compare === 0 ? inflight : Math.max(inflight, COMPARED_SLOTS);
  const messages = sizes.map((bytes) => bytes * slotsOf(slots, bytes));
  const swept = blocks === undefined ? 0 : blocks.maxBlockBytes * blocks.maxBatch;
  return Math.max(PING_BYTES, ...messages, swept, descriptors * DESCRIPTOR_STRIDE);
}

/** From `first` to `last`, doubling. */
export function doubling(first: number, last: number): number[] {
  const values: number[] = [];
  for (let value = first; value <= last; value *= 2) values.push(value);
  return values;
}
