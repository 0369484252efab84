// The checked arguments of a layer's dispatch.
import type { Tensor } from '../../device/tensor.ts';
import type { TokenDType } from './ep-config.ts';

export interface LayerInput {
  readonly x: Tensor<TokenDType>;
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  readonly topkWeights: Tensor<'f32' | 'bf16'> | undefined;
  readonly fullScatterIndices: Tensor<'i32' | 'i64'> | undefined;
  readonly numTokens: number;
  /** Rows of the results; 0 for as many as come. */
  readonly rowBound: number;
}
