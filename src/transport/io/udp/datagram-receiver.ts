// Takes datagrams from the sockets that are readable into one arena, as batches for the engine. Hot path: no allocation.
import { MessageBlock } from '../../../native/message-block.ts';
import type { NativeBlock } from '../../../native/native-block.ts';
import { receiveMessages } from '../../../native/udp.ts';
import { createReceivedBatch, type ReceivedBatch } from '../packet-io.ts';

/** What the kernel may join is at most 64 KiB. */
const SLOT_BYTES = 65_536;
const SLOTS = 64;
/** Large datagrams are taken a few at a time, so that they are still in the cache when they are placed. */
const LARGE_SLOTS = 8;
const LARGE_BYTES = 8192;

export const RECEIVE_ARENA_BYTES: number = SLOTS * SLOT_BYTES;

const ECONNREFUSED = 111;

export class DatagramReceiver {
  /** What the last `receive` brought. */
  readonly batch: ReceivedBatch;
  /** True if the last `receive` heard that the peer's port is closed. */
  isRefused = false;
  readonly #block = new MessageBlock({ messages: SLOTS, iovecsPerMessage: 1 });
  #slots = SLOTS;
  /** Slots that the last call filled: the kernel has shortened what it was given for control records. */
  #filled = SLOTS;

  /** `arena` has RECEIVE_ARENA_BYTES. */
  constructor(arena: NativeBlock) {
    this.batch = createReceivedBatch(arena.bytes, SLOTS);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      this.#block.setIovec(slot, 0, arena.address + slot * SLOT_BYTES, SLOT_BYTES);
      this.#block.setIovecCount(slot, 1);
      this.batch.offset[slot] = slot * SLOT_BYTES;
    }
  }

  /** Fills the batch from one socket. True if there may be more in it. */
  receive(fd: number, peer: number): boolean {
    const block = this.#block;
    const { batch } = this;
    const asked = this.#slots;
    for (let slot = 0; slot < this.#filled; slot += 1) block.expectControl(slot);
    const count = receiveMessages(fd, block.addressOf(0), asked);
    batch.count = Math.max(0, count);
    this.#filled = batch.count;
    this.isRefused = count === -ECONNREFUSED;
    if (count <= 0) return false;
    let bytes = 0;
    for (let slot = 0; slot < count; slot += 1) {
      const length = block.lengthOf(slot);
      const segment = block.segmentBytesOf(slot);
      bytes += length;
      batch.length[slot] = length;
      batch.segmentBytes[slot] = segment < length ? segment : 0;
      batch.peer[slot] = peer;
    }
    this.#slots = bytes > count * LARGE_BYTES ? LARGE_SLOTS : SLOTS;
    return count === asked;
  }
}
