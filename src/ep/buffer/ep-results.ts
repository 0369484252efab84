// What EpBuffer's calls return.
import type { DeviceEvent } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RowsLike } from './dispatch-arguments.ts';
import type { DispatchHandle } from './dispatch-handle.ts';

/**
 * All tensors but the handle's lie in this rank's window: they stay valid until the next dispatch on this buffer and
 * must not be disposed.
 */
export interface DispatchResult {
  /** [recv, H], ordered by source rank, then token index; in the form of `x`. With numWorstTokens [numWorstTokens, H]. */
  readonly recvX: RowsLike;
  /** [recv, K] local expert ids, -1 for experts of other ranks; dtype of topkIdx. */
  readonly recvTopkIdx: Tensor<'i32' | 'i64'> | undefined;
  /** f32 [recv, K], 0 where recvTopkIdx is -1. */
  readonly recvTopkWeights: Tensor<'f32'> | undefined;
  /** Choices per local expert, rounded up to expertAlignment (the count only, no rows are added). */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly handle: DispatchHandle;
  /** When the rows are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}

/** Owned by the caller. */
export interface CombineResult {
  /** bf16 [T, H]: bias + the rows of all ranks that held the token, in rank order, summed in f32, rounded once. */
  readonly combinedX: Tensor<'bf16'>;
  /** f32 [T, K]: the sum of the ranks' weight rows. */
  readonly combinedTopkWeights: Tensor<'f32'> | undefined;
  /** When the sums are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}
