// The grouped product by whichever is faster for a batch: our kernel for few rows per group, cuBLAS for many.
import type { GroupedOperands, GroupedProduct, Groups } from './grouped-product.ts';

/**
 * Tiles of rows per group that has rows, on average, up to which our kernel is faster: one launch for all groups, and
 * what counts is the weights' way from memory. Measured on an H200, docs/benchmarks/moe-cuda.md.
 */
export const FEW_TILES = 1;

export class AutoProduct implements GroupedProduct {
  readonly name: string;
  readonly #few: GroupedProduct;
  readonly #many: GroupedProduct;

  /** Owns both. */
  constructor(few: GroupedProduct, many: GroupedProduct) {
    this.name = `${few.name}; ${many.name}`;
    this.#few = few;
    this.#many = many;
  }

  multiply(operands: GroupedOperands, groups: Groups): void {
    const product = groups.tiles <= groups.busy * FEW_TILES ? this.#few : this.#many;
    product.multiply(operands, groups);
  }

  [Symbol.dispose](): void {
    this.#few[Symbol.dispose]();
    this.#many[Symbol.dispose]();
  }
}
