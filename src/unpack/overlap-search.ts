// Finds two ranges that overlap among those of one launch. Ranges that come in order cost one comparison each, others mark
// the bits of what they cover where those are few, and are sorted where they are many.
import { MAX_BLOCK_DESCRIPTORS } from '../abi/unpack-block.ts';
import type { Overlap } from './descriptor-errors.ts';

const TWO_32 = 2 ** 32;
/** Digits that are sorted by, the lowest first. */
const DIGIT_BITS = 11;
const DIGITS = 1 << DIGIT_BITS;
/** A range is sorted in the time in which so many words of bits are cleared and marked. */
const WORDS_PER_RANGE = 16;

/** What a caller has found out of the ranges of a block while it wrote them. */
export interface WrittenRanges {
  readonly count: number;
  readonly first: number;
  readonly bits: number;
  /** Each begins behind the one before. */
  readonly isOrdered: boolean;
  readonly least: number;
  /** Where the last byte of all ends. */
  readonly most: number;
}

export class OverlapSearch {
  /** Written by the caller, to whom a call per range would cost more than the range. */
  readonly starts: Float64Array;
  readonly lengths: Uint32Array;
  /** Block and descriptor in one number. */
  readonly names: Uint32Array;
  readonly #low: Uint32Array;
  readonly #high: Uint32Array;
  #order: Uint32Array;
  #spare: Uint32Array;
  readonly #ends = new Uint32Array(DIGITS);
  #count = 0;
  #isOrdered = true;
  /** Where the range that was added last ends. */
  #end = 0;
  #least = Infinity;
  #most = 0;
  /** The start that was added first. */
  #first = 0;
  /** The bits in which starts differ from the first, and those of lengths: their lowest is a unit of all ranges. */
  #bits = 0;
  readonly #marks: Uint32Array;

  constructor(blocks: number) {
    const room = blocks * MAX_BLOCK_DESCRIPTORS;
    this.starts = new Float64Array(room);
    this.lengths = new Uint32Array(room);
    this.names = new Uint32Array(room);
    this.#low = new Uint32Array(room);
    this.#high = new Uint32Array(room);
    this.#order = new Uint32Array(room);
    this.#spare = new Uint32Array(room);
    this.#marks = new Uint32Array(room * WORDS_PER_RANGE);
  }

  clear(): void {
    this.#count = 0;
    this.#isOrdered = true;
    this.#end = 0;
    this.#least = Infinity;
    this.#most = 0;
    this.#bits = 0;
  }

  /** Where the next ranges are written, before they are counted: their starts, lengths and names. */
  get next(): number {
    return this.#count;
  }

  /**
   * Counts the ranges of a block that were written from `next` on. Their lengths are not 0. `bits`: those in which their
   * starts differ from `first`, and all bits of their lengths.
   */
  addBlock({ count, first, bits, isOrdered, least, most }: WrittenRanges): void {
    if (count === 0) return;
    if (this.#count === 0) this.#first = first;
    this.#bits |= bits | (first - this.#first);
    this.#isOrdered &&= isOrdered && this.starts[this.#count]! >= this.#end;
    this.#count += count;
    this.#end = this.starts[this.#count - 1]! + this.lengths[this.#count - 1]!;
    if (least < this.#least) this.#least = least;
    if (most > this.#most) this.#most = most;
  }

  /** The lowest bytes that two ranges share, if there are any. */
  find(): Overlap | undefined {
    if (this.#isOrdered || this.#markAll()) return undefined;
    this.#sort();
    const order = this.#order;
    for (let index = 1; index < this.#count; index++) {
      const before = order[index - 1]!;
      const range = order[index]!;
      if (this.starts[before]! + this.lengths[before]! > this.starts[range]!) return this.#describe(before, range);
    }
    return undefined;
  }

  /** True if every range has marked its bits and found none that was marked; false too if they are too many to mark. */
  #markAll(): boolean {
    const count = this.#count;
    const unit = (this.#bits & -this.#bits) >>> 0;
    const words = Math.ceil((this.#most - this.#least) / unit / 32);
    if (words > count * WORDS_PER_RANGE) return false;
    const marks = this.#marks;
    marks.fill(0, 0, words);
    const scale = 1 / unit;
    for (let index = 0; index < count; index++) {
      let bit = (this.starts[index]! - this.#least) * scale;
      const end = bit + this.lengths[index]! * scale;
      while (bit < end) {
        const at = bit & 31;
        const bits = Math.min(32 - at, end - bit);
        const mask = (bits === 32 ? -1 : (1 << bits) - 1) << at;
        const word = bit >>> 5;
        const seen = marks[word]!;
        if ((seen & mask) !== 0) return false;
        marks[word] = seen | mask;
        bit += bits;
      }
    }
    return true;
  }

  /** By start; a sort by digits needs no comparisons and allocates nothing. */
  #sort(): void {
    const count = this.#count;
    for (let index = 0; index < count; index++) {
      const distance = this.starts[index]! - this.#least;
      this.#low[index] = distance;
      this.#high[index] = distance / TWO_32;
      this.#order[index] = index;
    }
    const most = this.#most - this.#least;
    this.#sortBy(this.#low, Math.min(most, TWO_32 - 1));
    this.#sortBy(this.#high, Math.floor(most / TWO_32));
  }

  #sortBy(keys: Uint32Array, most: number): void {
    const ends = this.#ends;
    const count = this.#count;
    for (let shift = 0; most / 2 ** shift >= 1; shift += DIGIT_BITS) {
      const order = this.#order;
      const sorted = this.#spare;
      ends.fill(0);
      for (let index = 0; index < count; index++) ends[(keys[index]! >>> shift) & (DIGITS - 1)]! += 1;
      for (let digit = 1; digit < DIGITS; digit++) ends[digit]! += ends[digit - 1]!;
      for (let index = count - 1; index >= 0; index--) {
        const range = order[index]!;
        sorted[(ends[(keys[range]! >>> shift) & (DIGITS - 1)]! -= 1)] = range;
      }
      this.#order = sorted;
      this.#spare = order;
    }
  }

  /** The descriptor that came later is the one to blame. */
  #describe(one: number, other: number): Overlap {
    const [first, second] = [Math.min(one, other), Math.max(one, other)];
    const [name, otherName] = [this.names[second]!, this.names[first]!];
    return {
      block: Math.floor(name / MAX_BLOCK_DESCRIPTORS),
      descriptor: name % MAX_BLOCK_DESCRIPTORS,
      otherBlock: Math.floor(otherName / MAX_BLOCK_DESCRIPTORS),
      otherDescriptor: otherName % MAX_BLOCK_DESCRIPTORS,
      address: Math.max(this.starts[first]!, this.starts[second]!),
    };
  }
}
