// Signals that have arrived before segments that precede them: they wait here until those have come.
import type { Region } from './region.ts';

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
    this.#items[this.count] = item;
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

  /** Carries out the signals before segment `next`, which is the oldest that is missing. True if there were any. */
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
