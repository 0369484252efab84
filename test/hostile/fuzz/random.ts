// Choices that a seed determines.
import { seededRandom } from '#lib/core/seeded-random.js';

export class Random {
  readonly next: () => number;

  constructor(seed: number) {
    this.next = seededRandom(seed);
  }

  /** 0 to `count` - 1. */
  below(count: number): number {
    return Math.floor(this.next() * count);
  }

  pick<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T;
  }

  chance(share: number): boolean {
    return this.next() < share;
  }

  bytes(count: number): Uint8Array {
    return Uint8Array.from({ length: count }, () => this.below(256));
  }
}

/** Seeds of inputs: nearby numbers give unrelated streams. */
export function mixSeed(seed: number, ...words: readonly number[]): number {
  let mixed = seed | 0;
  for (const word of words) mixed = Math.imul(mixed ^ word ^ (mixed >>> 15), 0x2c1b_3c6d) + 0x9e37_79b9;
  return mixed >>> 0;
}
