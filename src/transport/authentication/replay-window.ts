// Which packets of a peer have been taken in, by number, so that each counts once. Hot path: no allocation.

/**
 * How far a packet may be overtaken and still count. Far more than a connection has under way: it is for paths that differ
 * in speed. A power of two.
 */
const REPLAY_WINDOW_PACKETS = 65_536;

const WORDS = REPLAY_WINDOW_PACKETS / 32;

export class ReplayWindow {
  /** The highest number that was taken in. */
  newest: number;
  /** A bit per number. INVARIANT: bits of numbers above `newest` are clear. */
  readonly #bits = new Int32Array(WORDS);

  /** `first`: the number of the first packet. */
  constructor(first: number) {
    this.newest = first - 1;
  }

  /** The number whose low 32 bits are `low` and that is closest to the newest one. Negative if there is none. */
  nearest(low: number): number {
    return this.newest + ((low - (this.newest % 2 ** 32)) | 0);
  }

  /** Takes in a number; false if it was taken before, or is too old to tell. */
  take(number: number): boolean {
    const block = Math.floor(number / 32);
    const newestBlock = Math.floor(this.newest / 32);
    if (newestBlock - block >= WORDS) return false;
    const bits = this.#bits;
    if (number > this.newest) {
      const last = Math.min(block, newestBlock + WORDS);
      for (let between = newestBlock + 1; between <= last; between++) bits[between & (WORDS - 1)] = 0;
      this.newest = number;
    }
    const word = block % WORDS;
    const bit = 1 << (number % 32);
    if ((bits[word]! & bit) !== 0) return false;
    bits[word] = bits[word]! | bit;
    return true;
  }
}
