// Messages of staged transfers on their way to the staging thread: a ring that the agent's thread fills, in order.
import { STAGED_MESSAGE_BYTES, STAGED_MESSAGE_WORDS, stagedMessageWord } from './board-layout.ts';
import { alignUp } from '../../abi/layout.ts';

const RING_AT = STAGED_MESSAGE_WORDS * 4;

export class StagedMessages {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #ring: Uint8Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(RING_AT + STAGED_MESSAGE_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, STAGED_MESSAGE_WORDS);
    this.#ring = new Uint8Array(buffer, RING_AT, STAGED_MESSAGE_BYTES);
  }

  /** The agent's thread. False, with nothing written, if there is no room. */
  write(message: Uint8Array): boolean {
    const written = this.#words[stagedMessageWord.written]!;
    const used = (written - Atomics.load(this.#words, stagedMessageWord.taken)) | 0;
    if (used + placeOf(message.length) > STAGED_MESSAGE_BYTES) return false;
    const at = written & (STAGED_MESSAGE_BYTES - 1);
    const first = Math.min(message.length, STAGED_MESSAGE_BYTES - at);
    if (first === message.length) this.#ring.set(message, at);
    else {
      this.#ring.set(message.subarray(0, first), at);
      this.#ring.set(message.subarray(first), 0);
    }
    Atomics.store(this.#words, stagedMessageWord.written, (written + placeOf(message.length)) | 0);
    return true;
  }

  /** The staging thread: a copy of the oldest message, of so many bytes. */
  read(bytes: number): Uint8Array {
    const at = this.#words[stagedMessageWord.taken]! & (STAGED_MESSAGE_BYTES - 1);
    const message = new Uint8Array(bytes);
    const first = Math.min(bytes, STAGED_MESSAGE_BYTES - at);
    message.set(this.#ring.subarray(at, at + first));
    if (first < bytes) message.set(this.#ring.subarray(0, bytes - first), first);
    return message;
  }

  /** The staging thread: the oldest message is over. */
  drop(bytes: number): void {
    Atomics.add(this.#words, stagedMessageWord.taken, placeOf(bytes));
  }
}

/** An empty message takes a place too, so that the ring is never full of nothing. */
function placeOf(bytes: number): number {
  return alignUp(Math.max(bytes, 1), 8);
}
