// The sender's memory of a link, registered as one region: credits from the peer, cells of signals, messages on their way.
import { wordOffsets } from '../../abi/layout.ts';
import { RDMA_RING_BYTES, rdmaMailboxHead } from './link-layout.ts';
import { NativeBlock } from '../../native/library.ts';
import type { OwnMemory, RdmaDevice } from './rdma-device.ts';

const word = wordOffsets(rdmaMailboxHead);
const CELL_BYTES = 8;

export class Mailbox implements Disposable {
  readonly bytes: Uint8Array;
  readonly address: number;
  readonly region: OwnMemory;
  /** The ring of messages, as an offset from the address of the mailbox. */
  readonly ringOffset: number;
  readonly #words: Int32Array;
  readonly #cells: Uint32Array;

  /** `cells`: numbers of 64 bits that may be on their way. Fails with WL_CAPACITY. */
  constructor(device: RdmaDevice, cells: number) {
    this.ringOffset = rdmaMailboxHead.size + cells * CELL_BYTES;
    const size = this.ringOffset + RDMA_RING_BYTES;
    const block = new NativeBlock(size);
    this.bytes = block.bytes;
    this.address = block.address;
    this.#words = new Int32Array(block.bytes.buffer, block.bytes.byteOffset, rdmaMailboxHead.size / 4);
    this.#cells = block.words.subarray(rdmaMailboxHead.size / 4, this.ringOffset / 4);
    this.region = device.register({ address: block.address, bytes: size, isOffered: false });
  }

  /** Messages that the peer has taken, modulo 2^32. ORDER: the device writes it behind nothing; a stale look costs time only. */
  get messagesTaken(): number {
    return Atomics.load(this.#words, word.messages);
  }

  get wakesSeen(): number {
    return Atomics.load(this.#words, word.wakes);
  }

  /** A new connection counts from 0. */
  resetCredits(): void {
    Atomics.store(this.#words, word.messages, 0);
    Atomics.store(this.#words, word.wakes, 0);
  }

  /** The place where the device puts what nobody wants to know. */
  get oldValueAddress(): number {
    return this.address + rdmaMailboxHead.offset.oldValue;
  }

  /** Hot path. Puts a number of 64 bits where a request can take it from; returns its address. */
  setCell(index: number, low: number, high: number): number {
    this.#cells[index * 2] = low;
    this.#cells[index * 2 + 1] = high;
    return this.address + rdmaMailboxHead.size + index * CELL_BYTES;
  }

  [Symbol.dispose](): void {
    this.region.close();
  }
}
