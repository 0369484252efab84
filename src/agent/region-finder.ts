// Finds the registered region that holds a range whole, in logarithmic time, however many regions there are.
import type { MemoryKind } from './agent-memory.ts';

/** A region of either side, for looking up addresses. */
export interface AddressRange {
  readonly kind: MemoryKind;
  readonly address: number;
  readonly length: number;
}

/**
 * Regions may overlap. The one that was found last is tried first, then the one that begins last of those that hold the
 * range, and of those that begin alike the first of the list.
 */
export class RegionFinder<T extends AddressRange> {
  /** Regions that were found, each once, in the order in which they were found. */
  readonly found: T[] = [];
  /** Of the region that was found last. */
  begin = 0;
  #end = 0;
  #latest = -1;
  /** By descending address. */
  readonly #sorted: readonly T[];
  readonly #begins: Float64Array;
  /** A tree of maxima over the ends: node n covers nodes 2n and 2n + 1, leaf i is node `leaves` + i. */
  readonly #ends: Float64Array;
  readonly #leaves: number;
  /** By place in `#sorted`: index in `found`, or -1. */
  readonly #indices: Int32Array;

  constructor(regions: readonly T[], kind: MemoryKind) {
    const sorted = regions.filter((region) => region.kind === kind).toSorted((a, b) => b.address - a.address);
    this.#sorted = sorted;
    this.#begins = Float64Array.from(sorted, ({ address }) => address);
    this.#leaves = 2 ** Math.ceil(Math.log2(Math.max(1, sorted.length)));
    this.#ends = new Float64Array(2 * this.#leaves);
    for (const [place, { address, length }] of sorted.entries()) this.#ends[this.#leaves + place] = address + length;
    for (let node = this.#leaves - 1; node > 0; node--) {
      this.#ends[node] = Math.max(this.#ends[2 * node]!, this.#ends[2 * node + 1]!);
    }
    this.#indices = new Int32Array(sorted.length).fill(-1);
  }

  /** The index in `found` of a region that holds the range whole; -1 if none does. Both must be safe integers. */
  find(address: number, bytes: number): number {
    const end = address + bytes;
    if (this.#latest !== -1 && address >= this.begin && end <= this.#end) return this.#latest;
    const place = this.#placeOf(address, end);
    if (place === -1) return -1;
    const region = this.#sorted[place] as T;
    if (this.#indices[place] === -1) this.#indices[place] = this.found.push(region) - 1;
    this.#latest = this.#indices[place]!;
    this.begin = region.address;
    this.#end = region.address + region.length;
    return this.#latest;
  }

  /** The region that begins last of those that hold the address, for errors. */
  around(address: number): T | undefined {
    return this.#sorted[this.#placeOf(address, address + 1)];
  }

  #placeOf(address: number, end: number): number {
    let low = 0;
    for (let high = this.#begins.length; low < high;) {
      const middle = (low + high) >>> 1;
      if (this.#begins[middle]! <= address) high = middle;
      else low = middle + 1;
    }
    return this.#firstThatReaches(end, low);
  }

  /** The first place from `from` on whose region ends at `end` or later; -1 if there is none. */
  #firstThatReaches(end: number, from: number): number {
    const ends = this.#ends;
    const leaves = this.#leaves;
    if (from >= this.#begins.length) return -1;
    let node = leaves + from;
    // Up, until a subtree to the right of what was looked at reaches far enough.
    while (ends[node]! < end) {
      while (node % 2 === 1) node >>>= 1;
      if (node === 0) return -1;
      node++;
    }
    while (node < leaves) node = ends[2 * node]! >= end ? 2 * node : 2 * node + 1;
    return node - leaves;
  }
}
