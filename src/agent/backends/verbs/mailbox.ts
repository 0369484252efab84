// The sender's memory of a link, registered as one region: credits from the peer, cells of signals, messages on their way.
import { wordOffsets } from '../../../abi/layout.ts';
import { VERBS_RING_BYTES, verbsMailboxHead } from '../../../abi/verbs-agent.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';

const word = wordOffsets(verbsMailboxHead);
const CELL_BYTES = 8;

export class Mailbox implements Disposable {
  readonly bytes: Uint8Array;
  readonly address: number;
  readonly region: MemoryRegion;
  /** Of the ring of messages, from the address of the mailbox. */
  readonly ringOffset: number;
  readonly #words: Int32Array;
  readonly #cells: Uint32Array;

  /** `cells`: numbers of 64 bits that may be on their way. Fails with WL_CAPACITY. */
  constructor(domain: ProtectionDomain, cells: number) {
    this.ringOffset = verbsMailboxHead.size + cells * CELL_BYTES;
    const size = this.ringOffset + VERBS_RING_BYTES;
    const block = new NativeBlock(size);
    this.bytes = block.bytes;
    this.address = block.address;
    this.#words = new Int32Array(block.bytes.buffer, block.bytes.byteOffset, verbsMailboxHead.size / 4);
    this.#cells = block.words.subarray(verbsMailboxHead.size / 4, this.ringOffset / 4);
    this.region = MemoryRegion.host(domain, block.address, size, { remoteWrite: true });
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

  /** Where the device puts what nobody wants to know. */
  get oldValueAddress(): number {
    return this.address + verbsMailboxHead.offset.oldValue;
  }

  /** Hot path. Puts a number of 64 bits where a request can take it from; returns its address. */
  setCell(index: number, low: number, high: number): number {
    this.#cells[index * 2] = low;
    this.#cells[index * 2 + 1] = high;
    return this.address + verbsMailboxHead.size + index * CELL_BYTES;
  }

  [Symbol.dispose](): void {
    this.region.close();
  }
}
