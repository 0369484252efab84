// fp8 rows with their scales, the form in which quantised tokens travel.
import type { Tensor } from '../tensor.ts';

/** The value of an element is data * the scale of its group. */
export interface ScaledRows {
  /** [T, H] */
  readonly data: Tensor<'fp8e4m3'>;
  /** [T, ceil(H / 128)]: a scale per FP8_GROUP columns. */
  readonly scales: Tensor<'f32'>;
}
