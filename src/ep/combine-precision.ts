// As what a host's sum of a token's rows travels to the token's host.
import type { elementFormats } from '../abi/element-formats.ts';
import { dtypes } from '../core/dtype.ts';

/** What rows may consist of. */
type RowDType = keyof typeof elementFormats;

/**
 * Dtype of the sums that hosts send to each other in combine: 'bf16' rounds each to the dtype of the rows, whichever that
 * is; 'f32' does not round it, for twice the bytes of 16-bit rows.
 */
export type CombinePrecision = 'bf16' | 'f32';

export const combinePrecisions: readonly CombinePrecision[] = ['bf16', 'f32'];

/** Dtype of a sum on the network. */
export function sumDType(rows: RowDType, precision: CombinePrecision): RowDType {
  return precision === 'f32' ? 'f32' : rows;
}

/** Bytes of a sum on the network. */
export function sumBytes(hidden: number, rows: RowDType, precision: CombinePrecision): number {
  return hidden * dtypes[sumDType(rows, precision)].bytes;
}
