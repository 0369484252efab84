// The tensors of the benchmark: blocks of ones, as many as the density says, at places that a seed determines.
import { dtypes, toBf16, type TypedArrayOf } from '../../../core/dtype.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import type { SparseWorkload } from './sparse-results.ts';

/** Exactly round(density * blocks) blocks have ones: any of them is as likely as any other. */
export function sparseValues(
  { blockSize, dtype, elements }: SparseWorkload,
  density: number,
  seed: number,
): TypedArrayOf[SparseWorkload['dtype']] {
  const values = new dtypes[dtype].array(elements) as TypedArrayOf[SparseWorkload['dtype']];
  const blocks = Math.ceil(elements / blockSize);
  const one = dtype === 'bf16' ? toBf16(1) : 1;
  const next = seededRandom(seed);
  let left = Math.round(density * blocks);
  for (let block = 0; block < blocks; block++) {
    // Of the blocks that are left, as many are to be chosen as are left to choose.
    if (next() * (blocks - block) >= left) continue;
    left--;
    values.fill(one, block * blockSize, Math.min((block + 1) * blockSize, elements));
  }
  return values;
}

export function tensorBytes({ dtype, elements }: SparseWorkload): number {
  return elements * dtypes[dtype].bytes;
}
