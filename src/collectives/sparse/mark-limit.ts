// The threshold as kernels of GPUs compare it: with the bits of a magnitude.
import type { SparseCall } from './sparse-call.ts';

const word = new Uint32Array(1);
const value = new Float32Array(word.buffer);
const MAX_WORD = 2 ** 32 - 1;

/** f32 and bf16: bits of the threshold as f32, which order magnitudes as they are, and any NaN above. i32: an integer. */
export function markLimit(dtype: SparseCall['dtype'], threshold: number): number {
  if (dtype === 'i32') return Math.min(Math.floor(threshold), MAX_WORD);
  value[0] = threshold;
  return word[0]!;
}
