// Signals that have arrived before segments that precede them: they wait here, in the order of their segments, until those
// have come.
import type { Region } from '../engine/region.ts';

/** Signals beyond these are not taken; the peer sends them again. */
const CAPACITY = 256;

interface PendingSignal {
  sequence: number;
  region: Region | undefined;
  offset: number;
  add: number;
}

export class PendingSignals {
  #items: PendingSignal[] = [];
  count = 0;

  hasRoom(): boolean {
    return this.count < CAPACITY;
  }

  add(sequence: number, region: Region, cell: { readonly offset: number; readonly add: number }): void {
    const item = this.#items[this.count] ?? { sequence: 0, region: undefined, offset: 0, add: 0 };
    // Paths overtake each other. The reader of a counter must never see a later signal without those before it: a reader
    // of a ring would take bytes for a message whose own bytes are not counted yet.
    let at = this.count;
    for (; at > 0; at--) {
      const earlier = this.#items[at - 1] as PendingSignal;
      if (((earlier.sequence - sequence) | 0) <= 0) break;
      this.#items[at] = earlier;
    }
    this.#items[at] = item;
    item.sequence = sequence;
    item.region = region;
    item.offset = cell.offset;
    item.add = cell.add;
    this.count++;
  }

  /** The region is no longer registered: what was to be added there is nobody's. */
  forget(region: Region): void {
    for (let at = 0; at < this.count; at++) {
      const item = this.#items[at] as PendingSignal;
      if (item.region === region) item.region = undefined;
    }
  }

  /** Carries out the signals before segment `next`, the oldest that is missing, in their order. True if there were any. */
  apply(next: number): boolean {
    const before = this.count;
    let kept = 0;
    for (let at = 0; at < this.count; at++) {
      const item = this.#items[at] as PendingSignal;
      if (((item.sequence - next) | 0) < 0) {
        if (item.region !== undefined) addToCell(item.region, item.offset, item.add);
        item.region = undefined;
        continue;
      }
      this.#items[at] = this.#items[kept] as PendingSignal;
      this.#items[kept++] = item;
    }
    this.count = kept;
    return kept < before;
  }
}

/** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
export function addToCell(region: Region, offset: number, add: number): void {
  const { buffer, byteOffset } = region.bytes;
  Atomics.add(new BigUint64Array(buffer, byteOffset + offset, 1), 0, BigInt(add));
}
