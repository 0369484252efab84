// fp8 rows with their scales, the form in which quantised tokens travel.
import type { Tensor } from '../tensor.ts';

/** Columns that share one scale. */
export const SCALE_GROUP = 128;

/** The value of an element is data * the scale of its group. */
export interface ScaledRows {
  /** [T, H] */
  readonly data: Tensor<'fp8e4m3'>;
  /** [T, ceil(H / 128)] */
  readonly scales: Tensor<'f32'>;
}
