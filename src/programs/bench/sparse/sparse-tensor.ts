// The tensors of the benchmark: blocks of ones, as many as the density says, at places that a seed determines.
import { dtypes, toBf16 } from '../../../core/dtype.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { SparseWorkload } from './sparse-results.ts';

/** Fills the tensor. Exactly round(density * blocks) blocks get ones: any of them is as likely as any other. */
export function fillSparse(tensor: Tensor, { blockSize, dtype }: SparseWorkload, density: number, seed: number): void {
  const view = tensor.view() as Float32Array;
  view.fill(0);
  const blocks = Math.ceil(tensor.elements / blockSize);
  const one = dtype === 'bf16' ? toBf16(1) : 1;
  const next = seededRandom(seed);
  let left = Math.round(density * blocks);
  for (let block = 0; block < blocks; block++) {
    // Of the blocks that are left, as many are to be chosen as are left to choose.
    if (next() * (blocks - block) >= left) continue;
    left--;
    view.fill(one, block * blockSize, Math.min((block + 1) * blockSize, tensor.elements));
  }
}

export function tensorBytes({ dtype, elements }: SparseWorkload): number {
  return elements * dtypes[dtype].bytes;
}
