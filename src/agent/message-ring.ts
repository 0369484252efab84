// Messages on their way to a peer, in a ring of this side from their posts until their places are free. Hot path: no allocation.
import { WeftlineError } from '../core/errors.ts';

export class MessageRing {
  /** Numbers of the oldest message that takes room, and of the next; they count up. */
  first = 0;
  next = 0;
  readonly #bytes: number;
  readonly #most: number;
  readonly #peer: string;
  // Columns by message number, modulo `#most`: where it lies, the end of its place, and whether that is free.
  readonly #offset: Uint32Array;
  readonly #end: Float64Array;
  readonly #isFree: Uint8Array;
  /** Bytes of the ring before the oldest message, and before the next; they count up. */
  #tail = 0;
  #head = 0;

  /** `bytes`: of the ring; `most`: messages at a time. Both are powers of two. */
  constructor({ bytes, most, peer }: { readonly bytes: number; readonly most: number; readonly peer: string }) {
    this.#bytes = bytes;
    this.#most = most;
    this.#peer = peer;
    this.#offset = new Uint32Array(most);
    this.#end = new Float64Array(most);
    this.#isFree = new Uint8Array(most);
  }

  /**
   * A place of `place` bytes for a message of `length`. Returns the message's number. Fails with WL_BUSY, leaving everything as
   * it was, if there is none, or the peer `hasRoom` for no more.
   */
  take(length: number, place: number, hasRoom = true): number {
    const at = this.#head % this.#bytes;
    // A message lies in one piece; what is left at the end is passed over.
    const skipped = at + place > this.#bytes ? this.#bytes - at : 0;
    const end = this.#head + skipped + place;
    if (!hasRoom || this.next - this.first === this.#most || end - this.#tail > this.#bytes)
      throw untaken(this.#peer, length);
    const number = this.next++;
    const slot = number % this.#most;
    this.#offset[slot] = skipped > 0 ? 0 : at;
    this.#end[slot] = this.#head = end;
    this.#isFree[slot] = 0;
    return number;
  }

  /** The begin of the message's place. */
  offsetOf(number: number): number {
    return this.#offset[number % this.#most]!;
  }

  /** Nobody reads the message any more. In any order; places become free in that of the messages. */
  free(number: number): void {
    this.#isFree[number % this.#most] = 1;
    while (this.first < this.next && this.#isFree[this.first % this.#most] === 1) {
      this.#tail = this.#end[this.first++ % this.#most]!;
    }
  }
}

/** Why a message cannot be sent now. */
export function untaken(peer: string, bytes: number): WeftlineError {
  return new WeftlineError(
    'WL_BUSY',
    `Cannot send a message of ${bytes} bytes to ${peer}, which has not taken earlier ones yet: try again later`,
    { details: { peer, bytes } },
  );
}
