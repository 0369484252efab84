// The grouped product by cuBLAS: one product per group that has rows.
import type { Cublas } from '../../device/cuda/cublas.ts';
import type { GroupedOperands, GroupedProduct, Groups } from './grouped-product.ts';

const BF16_BYTES = 2;
const F32_BYTES = 4;

export class CublasProduct implements GroupedProduct {
  readonly name: string;
  readonly #cublas: Cublas;

  constructor(cublas: Cublas, path: string) {
    this.name = `cuBLAS ${cublas.version} (${path})`;
    this.#cublas = cublas;
  }

  multiply({ x, w, out, n, k }: GroupedOperands, { rows: counts }: Groups): void {
    let first = 0;
    for (const [group, rows] of counts.entries()) {
      if (rows === 0) continue;
      this.#cublas.multiply({
        x: x + first * k * BF16_BYTES,
        w: w + group * n * k * BF16_BYTES,
        out: out + first * n * F32_BYTES,
        rows,
        n,
        k,
      });
      first += rows;
    }
  }

  [Symbol.dispose](): void {
    this.#cublas[Symbol.dispose]();
  }
}
