// The grouped product by whichever is faster for a batch: our kernel where groups are small, cuBLAS where they are large.
import type { GroupedOperands, GroupedProduct, Groups } from './grouped-product.ts';

/**
 * Tiles of rows per group up to which our kernel is faster, on average over the groups that have rows: each group's
 * weights are then read once, and one launch for all groups beats one for each. docs/benchmarks/moe-cuda.md.
 */
export const FEW_TILES = 1;
/** Floating-point operations per group that our kernel does while the host calls cuBLAS once: 4 us at 276 Tflop/s. */
export const FEW_OPERATIONS = 1.1e9;

export class AutoProduct implements GroupedProduct {
  readonly name: string;
  readonly #small: GroupedProduct;
  readonly #large: GroupedProduct;

  /** Owns both. */
  constructor(small: GroupedProduct, large: GroupedProduct) {
    this.name = `${small.name}; ${large.name}`;
    this.#small = small;
    this.#large = large;
  }

  multiply(operands: GroupedOperands, groups: Groups): void {
    const operations = 2 * groups.total * operands.n * operands.k;
    const isSmall = groups.tiles <= groups.busy * FEW_TILES || operations <= groups.busy * FEW_OPERATIONS;
    (isSmall ? this.#small : this.#large).multiply(operands, groups);
  }

  [Symbol.dispose](): void {
    this.#small[Symbol.dispose]();
    this.#large[Symbol.dispose]();
  }
}
