// Notifications of one link that go out: their ring, and how much of the far side's they may take. Hot path: no allocation.
import { linkWord } from '../../../abi/ucx-words.ts';
import { copyMemory } from '../../../native/libc.ts';
import { type LinkBlock, OUT_RING_BYTES } from './link-block.ts';
import { headerWord as at, ringBytes } from './message-header.ts';

/** Instead of the length of a notification: there is none. */
export const NO_MESSAGE = -1;

export class OutMessages {
  readonly #block: LinkBlock;

  constructor(block: LinkBlock) {
    this.#block = block;
  }

  /** Where the notification of an entry goes that was begun; -1 if the far side has not taken earlier ones. */
  place(entry: number, length: number): number {
    const block = this.#block;
    const { words } = block;
    const size = ringBytes(length);
    const untaken = (words[linkWord.sentMessages]! + words[linkWord.reserved]! - words[linkWord.takenThere]!) | 0;
    // A message lies in one piece: what is left at the ring's end is skipped.
    const outEnd = words[linkWord.outEnd]!;
    const place = outEnd & (OUT_RING_BYTES - 1);
    const skipped = place + length > OUT_RING_BYTES ? OUT_RING_BYTES - place : 0;
    const end = (outEnd + skipped + size) | 0;
    const used = (end - words[linkWord.outFree]!) | 0;
    if (untaken + size > OUT_RING_BYTES || used > OUT_RING_BYTES) return -1;
    const start = skipped > 0 ? 0 : place;
    block.messagePlace[entry] = start;
    block.messageBytes[entry] = length;
    block.messageEnd[entry] = end;
    block.isMessageSent[entry] = 0;
    words[linkWord.reserved] = words[linkWord.reserved]! + size;
    words[linkWord.outEnd] = end;
    return start;
  }

  /** Copies it to where it is sent from. `base`: of the header that goes with it. */
  put(entry: number, to: number, base: number): void {
    const block = this.#block;
    this.count(entry, base);
    copyMemory(to, block.outRing.address + block.messagePlace[entry]!, block.messageBytes[entry]!);
  }

  /** It is sent. */
  count(entry: number, base: number): void {
    const block = this.#block;
    const { words } = block;
    const message = block.messageBytes[entry]!;
    // 0 says that there is none.
    block.buffers.words[base + at.messageBytes] = message + 1;
    block.isMessageSent[entry] = 1;
    const size = ringBytes(message);
    words[linkWord.reserved] = words[linkWord.reserved]! - size;
    words[linkWord.sentMessages] = words[linkWord.sentMessages]! + size;
  }

  /** It will not be sent. */
  drop(entry: number): void {
    const block = this.#block;
    if (block.isMessageSent[entry] === 1) return;
    block.isMessageSent[entry] = 1;
    const size = ringBytes(block.messageBytes[entry]!);
    block.words[linkWord.reserved] = block.words[linkWord.reserved]! - size;
  }

  /** Its room in the ring may be used again. */
  free(entry: number): void {
    const block = this.#block;
    if (block.messageBytes[entry] !== NO_MESSAGE) block.words[linkWord.outFree] = block.messageEnd[entry]!;
  }
}
