// How the blocks of a tensor are dealt out to slots and their lanes: block b belongs to lane b mod (slots * lanes).
import { alignUp, defineLayout, wordOffsets } from '../../abi/layout.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';

export interface SlotShape {
  /** Elements of a block. */
  readonly blockSize: number;
  /** Blocks that one message of a slot carries at most. */
  readonly lanes: number;
  readonly slots: number;
}

/** Numbers of blocks and lanes fit 32 bits. */
const MAX_NUMBER = 2 ** 32 - 1;

/** Blocks from one of a lane to its next one. */
export function strideOf({ lanes, slots }: SlotShape): number {
  return lanes * slots;
}

export function blocksOf({ blockSize }: SlotShape, count: number): number {
  return Math.ceil(count / blockSize);
}

/** Slots that a call on so many blocks uses, from 0 on. The first one always, so that the ranks agree on what they call. */
export function slotsInUse({ lanes, slots }: SlotShape, blocks: number): number {
  return Math.max(1, Math.min(slots, Math.ceil(blocks / lanes)));
}

/** Lanes of the slot that have blocks, from 0 on. */
export function lanesInUse({ lanes }: SlotShape, slot: number, blocks: number): number {
  return Math.max(0, Math.min(lanes, blocks - slot * lanes));
}

/** The first of the numbers that stand for no block; one for each lane, in their order, above those of all blocks. */
export function infinityOf(shape: SlotShape): number {
  const stride = strideOf(shape);
  return (Math.floor(MAX_NUMBER / stride) - 1) * stride;
}

// The protocol of workers and aggregators asks this of a carrier: where they find each other's messages, and how they tell of new ones.

/** A worker's blocks; the sums of all workers, on their way down; the sums of some workers, on their way up. */
export const contribution = 0;
export const result = 1;
export const partial = 2;
export type MessageKind = typeof contribution | typeof result | typeof partial;

/**
 * A slot has two places of each kind, for messages of even and odd numbers. A worker writes message n + 1 when it has read
 * result n, and an aggregator writes sums n when it has read message n of all below it, and hands result n down when it has
 * read that of the one above: so nobody overwrites what others may still read, and both places stay as they are until then. A carrier that loses messages may therefore carry the latest
 * one again, as often as it likes; it must not take back what is newer. Ranks are those of the group. Hot path.
 */
export interface SlotBoard {
  /** All messages that can be read here, and this rank's own, lie there. */
  readonly memory: MemoryRange;
  /** The address at which a message can be read, or written by its own rank. `number` counts the slot's messages from 1. */
  address(kind: MessageKind, rank: number, slot: number, number: number): number;
  /** The number of the rank's latest message that has come; 0 before the first. */
  latest(kind: MessageKind, rank: number, slot: number): number;
  /**
   * This rank has written a message of so many bytes: contributions and partial sums go to the node above this rank in the
   * slot's tree, a result to those below.
   */
  post(kind: MessageKind, slot: number, number: number, bytes: number): void;
}

// Reads and writes the words of messages in device memory. Hot path: no allocation.

// What workers and aggregators of a sparse all-reduce write for each other: a message per slot and round, and its counter.

const CACHE_LINE = 64;
const BLOCK_ALIGNMENT = 16;
/** Bytes of the counter of a slot: how many messages were written there so far; wraps at 2^32. */
export const SLOT_COUNTER_BYTES = 8;

/**
 * One per rank, in its part of the window.
 *
 * - `bell`: the word that the rank sleeps on; `sleepers`: above zero while it does or is about to.
 * - `left`: above zero once a worker has closed its side. A cell of 64 bits, which is counted on other hosts too.
 * - Of GPUs that reach each other: `calls`, `counts` and `dtypes` of calls of even and odd numbers; `ready` and `taken`, pieces over
 *   all calls that lie in the rank's window, and that it needs of nobody any more. They wrap.
 */
export const sparseBoard = defineLayout(
  'SparseBoard',
  {
    bell: 'i32',
    sleepers: 'i32',
    left: 'i32',
    leftHigh: 'i32',
    ready: 'i32',
    taken: 'i32',
    calls: { of: 'i32', count: 2 },
    counts: { of: 'u32', count: 2 },
    dtypes: { of: 'u32', count: 2 },
  },
  CACHE_LINE,
);

/**
 * A message of the worker for its aggregator, or of the aggregator for all workers. Behind it come
 *
 * - a mask of lanes, in words of 32: those whose blocks the message has;
 * - `entries` words: a worker's next block behind the present one, of all lanes in round 0, later of those in the mask; of an
 *   aggregator, the next block of all lanes that were not over. A lane that is over has the number `infinityOf()` gives;
 * - from a multiple of 16 bytes on, `blocks` blocks, by lane.
 */
const sparseMessage = defineLayout('SparseMessage', {
  /** The number of the worker's call, from 1; wraps. */
  call: 'u32',
  /** The round of the call and slot, from 0. */
  round: 'u32',
  /** Elements of the tensor. */
  count: 'u32',
  dtype: 'u32',
  entries: 'u32',
  blocks: 'u32',
  /** How long the worker waits for the others. */
  timeoutMs: 'u32',
  reserved: 'u32',
});

function maskWords(lanes: number): number {
  return Math.ceil(lanes / 32);
}

/** Offset of the blocks in a message. */
export function sparseBlocksOffset(lanes: number, entries: number): number {
  return alignUp(sparseMessage.size + (maskWords(lanes) + entries) * 4, BLOCK_ALIGNMENT);
}

/** Room for the longest message of a slot. */
export function sparseMessageBytes(lanes: number, blockBytes: number): number {
  return alignUp(sparseBlocksOffset(lanes, lanes) + lanes * blockBytes, CACHE_LINE);
}

const word = wordOffsets(sparseMessage);
const HEADER_WORDS = sparseMessage.size / 4;

export class MessageView {
  /** Words of the mask. */
  readonly masks: number;
  readonly #words: Uint32Array;
  readonly #base: number;
  /** The message, in words from the beginning of the memory. */
  #at = 0;

  /** `memory`: all messages lie there. */
  constructor(device: CpuDevice, memory: MemoryRange, lanes: number) {
    this.#words = new Uint32Array(device.memory.buffer, memory.address, memory.bytes / 4);
    this.#base = memory.address;
    this.masks = maskWords(lanes);
  }

  /** Makes it the message there from now on. */
  look(address: number): void {
    this.#at = (address - this.#base) / 4;
  }

  get(field: keyof typeof word): number {
    return this.#words[this.#at + word[field]]!;
  }

  set(field: keyof typeof word, value: number): void {
    this.#words[this.#at + word[field]] = value;
  }

  clearMask(): void {
    const from = this.#at + HEADER_WORDS;
    this.#words.fill(0, from, from + this.masks);
  }

  hasBlock(lane: number): boolean {
    return ((this.#words[this.#at + HEADER_WORDS + (lane >>> 5)]! >>> (lane & 31)) & 1) === 1;
  }

  addBlock(lane: number): void {
    const at = this.#at + HEADER_WORDS + (lane >>> 5);
    this.#words[at] = this.#words[at]! | (1 << (lane & 31));
  }

  entry(index: number): number {
    return this.#words[this.#at + HEADER_WORDS + this.masks + index]!;
  }

  setEntry(index: number, value: number): void {
    this.#words[this.#at + HEADER_WORDS + this.masks + index] = value;
  }
}
