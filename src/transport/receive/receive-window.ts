// Which segments of a connection have arrived: a bitmap that moves with the oldest missing one. Hot path: no allocation.
// Sequences are signed 32-bit integers that wrap; they are compared by their difference.

/** Segments beyond the oldest missing one that are remembered; a power of two. */
export const RECEIVE_WINDOW_SEGMENTS = 8192;

const WORDS = RECEIVE_WINDOW_SEGMENTS / 32;
const WORD_MASK = WORDS - 1;

export class ReceiveWindow {
  /** The oldest segment that is missing. */
  next: number;
  /** One more than the newest that arrived. */
  end: number;
  /** INVARIANT: bits of segments outside [next, end) are clear. Word = (sequence >>> 5) modulo the window. */
  readonly #bits = new Int32Array(WORDS);

  constructor(first = 0) {
    this.next = first;
    this.end = first;
  }

  /** True if the whole run is expected next and nothing later has come: the usual case, O(1). */
  isNext(sequence: number): boolean {
    return sequence === this.next && this.end === this.next;
  }

  /** Takes a run for which `isNext` holds. */
  advance(count: number): void {
    this.next = (this.next + count) | 0;
    this.end = this.next;
  }

  isTooFar(sequence: number): boolean {
    // Not ">": a distance of the window's size would share its bit with the oldest missing segment.
    return ((sequence - this.next) | 0) >= RECEIVE_WINDOW_SEGMENTS - 32;
  }

  has(sequence: number): boolean {
    if (((sequence - this.next) | 0) < 0) return true;
    if (((sequence - this.end) | 0) >= 0) return false;
    return ((this.#bits[(sequence >>> 5) & WORD_MASK]! >>> (sequence & 31)) & 1) === 1;
  }

  /** Takes one segment that is new and not too far. */
  add(sequence: number): void {
    if (((sequence - this.end) | 0) >= 0) this.end = (sequence + 1) | 0;
    const bits = this.#bits;
    if (sequence !== this.next) {
      const word = (sequence >>> 5) & WORD_MASK;
      bits[word] = bits[word]! | (1 << (sequence & 31));
      return;
    }
    let next = (sequence + 1) | 0;
    while (next !== this.end) {
      const word = (next >>> 5) & WORD_MASK;
      const bit = 1 << (next & 31);
      if ((bits[word]! & bit) === 0) break;
      bits[word] = bits[word]! & ~bit;
      next = (next + 1) | 0;
    }
    this.next = next;
  }

  /** How many words an ack needs; 0 when nothing is missing. */
  words(): number {
    if (this.end === this.next) return 0;
    return ((this.end - (this.next & ~31) + 31) | 0) >>> 5;
  }

  /** Word `index` for an ack: bits before `next` are set. */
  word(index: number): number {
    const word = this.#bits[((this.next >>> 5) + index) & WORD_MASK]!;
    return index === 0 ? word | ((1 << (this.next & 31)) - 1) : word;
  }
}
