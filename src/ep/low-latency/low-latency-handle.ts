// What combine needs to know of an earlier dispatch in low-latency mode.
import type { Tensor } from '../../device/tensor.ts';

/** Made by EpLowLatency.dispatch and valid until the second dispatch after its own begins. It owns nothing. */
export class LowLatencyHandle {
  /** @internal The object that made it, compared by identity. */
  readonly owner: object;
  /** Number of the dispatch, from 1; the same on all ranks. */
  readonly sequence: number;
  /** T: tokens that this rank sent. */
  readonly numTokens: number;
  /** K: choices of each. */
  readonly topk: number;
  /**
   * i32 [experts of this rank, C], in 'rank-major' [ranks, M]: the token of each row at its source rank; -1 behind the rows,
   * written anew by every dispatch.
   */
  readonly recvSrcIdx: Tensor<'i32'>;
  /** 'expert-major' alone: i32 [experts of this rank, ranks, 2], first row and number of rows of each source rank. */
  readonly recvRange: Tensor<'i32'> | undefined;

  /** @internal */
  constructor(parts: Pick<LowLatencyHandle, 'owner' | 'sequence' | 'numTokens' | 'topk' | 'recvSrcIdx' | 'recvRange'>) {
    this.owner = parts.owner;
    this.sequence = parts.sequence;
    this.numTokens = parts.numTokens;
    this.topk = parts.topk;
    this.recvSrcIdx = parts.recvSrcIdx;
    this.recvRange = parts.recvRange;
  }
}
