// What the calls of EpLowLatency return.
import type { WaitOptions } from '../../core/deadline.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { LowLatencyHandle } from './low-latency-handle.ts';

/** Quantised rows: the value of an element is its data times the scale of its group of 128 columns. */
export interface LowLatencyScaledRows {
  /** [experts or ranks, rows, H]. */
  readonly data: Tensor<'fp8e4m3'>;
  /**
   * Column-major, so that the scales of one group stand side by side: f32 [experts or ranks, ceil(H / 128), rows]; with
   * scales 'ue8m0' i32 [experts or ranks, ceil(ceil(H / 128) / 4), rows], four exponents (the upper 8 bits of an f32 without
   * its sign) per word, the first group lowest.
   */
  readonly scales: Tensor<'f32' | 'i32'>;
}

/** Rows in the form in which a dispatch sends them. */
export type LowLatencyRows = Tensor<'bf16'> | LowLatencyScaledRows;

/**
 * Valid, as is its handle, until the second dispatch after its own begins: two results are alive at once. Nothing of it
 * must be disposed; `out` is the caller's.
 */
export interface LowLatencyDispatchResult {
  /**
   * 'expert-major': [experts of this rank, C, H], of each expert the rows of source ranks in order, tokens in order.
   * 'rank-major': [ranks, M, H], the tokens of each source rank in order. What lies behind the rows is undefined.
   */
  readonly recvX: LowLatencyRows;
  /** i32 [experts of this rank]: rows of each expert; in 'rank-major' i32 [ranks]: rows of each source rank. */
  readonly recvCount: Tensor<'i32'>;
  /** i32 [experts of this rank]: rows that found no place; absent in 'rank-major', where all do. */
  readonly dropped: Tensor<'i32'> | undefined;
  /** With `elastic` alone: i32 [ranks], 1 where the source rank's rows are in the result, 0 where it is not active. */
  readonly activeMask?: Tensor<'i32'> | undefined;
  /** 'rank-major' alone: [ranks, M, K], in the dtype of topkIdx: local expert ids, -1 for those of other ranks and behind the rows. */
  readonly recvTopkIdx: Tensor<'i32' | 'i64'> | undefined;
  /** 'rank-major' with topkWeights alone: f32 [ranks, M, K], 0 where recvTopkIdx is -1. */
  readonly recvTopkWeights: Tensor<'f32'> | undefined;
  readonly handle: LowLatencyHandle;
}

/** Of a dispatch with returnRecvHook: its rows are on their way, and nothing works on it until the hook is called. */
export interface PendingDispatch {
  /** To be called once. Waits for the rows of all ranks; its own deadline begins now. */
  readonly hook: (options?: WaitOptions) => Promise<LowLatencyDispatchResult>;
}

/** What a combine returns. */
export interface LowLatencyCombineResult {
  /** bf16 [T, H]: `out`, or a tensor of the caller's from now on. */
  readonly combinedX: Tensor<'bf16'>;
  /** With `elastic` alone, valid as long as the handle: i32 [ranks], 1 where the rank's sums are in the result. */
  readonly activeMask?: Tensor<'i32'> | undefined;
  /** With `elastic` alone, the same: i32 [T], choices of each token that were dropped because their rank is not active. */
  readonly droppedChoices?: Tensor<'i32'> | undefined;
}

/** Of a combine with returnRecvHook: peers can read this rank's rows, and nothing works on it until the hook is called. */
export interface PendingCombine {
  /** To be called once. Waits for the rows of all ranks; its own deadline begins now. */
  readonly hook: (options?: WaitOptions) => Promise<LowLatencyCombineResult>;
}
