// Signals that have arrived before segments that precede them: they wait here, in the order of their segments, until those
// have come.
import type { Region } from '../engine/region.ts';

/** Room at first; it doubles where it does not suffice, up to the size of the receive window. */
const FIRST_CAPACITY = 16;

interface PendingSignal {
  sequence: number;
  region: Region | undefined;
  offset: number;
  add: number;
}

/** There is room for every segment of the window. Were one turned away, it could be the one that all others wait for. */
export class PendingSignals {
  /** A ring; its size is a power of two. */
  #items = Array.from({ length: FIRST_CAPACITY }, emptyItem);
  #first = 0;
  count = 0;

  /** `sequence` is in the receive window and not here yet. */
  add(sequence: number, region: Region, cell: { readonly offset: number; readonly add: number }): void {
    if (this.count === this.#items.length) this.#grow();
    const items = this.#items;
    const mask = items.length - 1;
    let at = this.#first + this.count;
    const item = items[at & mask] as PendingSignal;
    // Paths overtake each other. The reader of a counter must never see a later signal without those before it: a reader
    // of a ring would take bytes for a message whose own bytes are not counted yet.
    for (; at > this.#first; at--) {
      const earlier = items[(at - 1) & mask] as PendingSignal;
      if (((earlier.sequence - sequence) | 0) <= 0) break;
      items[at & mask] = earlier;
    }
    items[at & mask] = item;
    item.sequence = sequence;
    item.region = region;
    item.offset = cell.offset;
    item.add = cell.add;
    this.count++;
  }

  /** The region is no longer registered: what was to be added there is nobody's. */
  forget(region: Region): void {
    for (let index = 0; index < this.count; index++) {
      const item = this.#at(index);
      if (item.region === region) item.region = undefined;
    }
  }

  /** Carries out the signals before segment `next`, the oldest that is missing, in their order. True if there were any. */
  apply(next: number): boolean {
    const before = this.count;
    while (this.count > 0) {
      const item = this.#at(0);
      if (((item.sequence - next) | 0) >= 0) break;
      if (item.region !== undefined) addToCell(item.region, item.offset, item.add);
      item.region = undefined;
      this.#first = (this.#first + 1) & (this.#items.length - 1);
      this.count--;
    }
    return this.count < before;
  }

  #at(index: number): PendingSignal {
    return this.#items[(this.#first + index) & (this.#items.length - 1)] as PendingSignal;
  }

  #grow(): void {
    const { length } = this.#items;
    this.#items = Array.from({ length: 2 * length }, (_, index) => (index < length ? this.#at(index) : emptyItem()));
    this.#first = 0;
  }
}

function emptyItem(): PendingSignal {
  return { sequence: 0, region: undefined, offset: 0, add: 0 };
}

/** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
export function addToCell(region: Region, offset: number, add: number): void {
  const { buffer, byteOffset } = region.bytes;
  Atomics.add(new BigUint64Array(buffer, byteOffset + offset, 1), 0, BigInt(add));
}
