// EPAllToAllLayoutDesc: what combine needs to know of a layer dispatch.
import type { Tensor } from '../../device/tensor.ts';

/** Owned by the caller; valid as long as the layer. Dispose it when combine is done (else the garbage collector does). */
export class EPAllToAllLayoutDesc implements Disposable {
  /** @internal */
  readonly owner: object;
  /**
   * Number of the dispatch among the layer's; ranks that use descriptors of different dispatches together get an error.
   * @internal
   */
  readonly sequence: number;
  /** Tokens that this rank dispatched. */
  readonly numDispatchTokenCurRank: number;
  /** i32 [worldSize]: tokens that each rank dispatched. */
  readonly numInputTokensPerRank: Tensor<'i32'>;
  /** Send requests of other nodes; only between nodes, so always absent on one host. */
  readonly sendReqsRecvTensor: undefined;
  /** [T, K]: the caller's expert indices. Not owned. */
  readonly topkIndicesTensor: Tensor<'i32' | 'i64'>;
  /** i32 [1, maxTokens, K]: row of (token, choice) in the output of the expert's rank; -1 for dropped or absent ones. */
  readonly tokenDstScatterIdx: Tensor<'i32'>;
  /** i32 [recv]: the first row here of the row's token. Only with local combine. */
  readonly skippedTokenMappingIndices: Tensor<'i32'> | undefined;
  /** i32 [recv, K]: for first rows, the row of each choice of the token here or -1; -1 for other rows. Only with local combine. */
  readonly skippedTokenTopkMappingIndices: Tensor<'i32'> | undefined;
  /** i32 [n]: first rows of the n tokens that have several rows here, in no particular order. Only on GPUs with local combine. */
  readonly repeatedRows: Tensor<'i32'> | undefined;
  /** i32 [T, K]: the rank of each choice's expert, -1 for dropped ones. */
  readonly tokenDstRank: Tensor<'i32'>;
  /** Rows received. */
  readonly numRecvTokens: number;
  /** Rows received per local expert, in the order in which they stand in the output. */
  readonly numRecvTokensPerExpert: readonly number[];

  /** @internal */
  constructor(parts: Omit<EPAllToAllLayoutDesc, 'dispose' | 'sendReqsRecvTensor' | typeof Symbol.dispose>) {
    this.owner = parts.owner;
    this.sequence = parts.sequence;
    this.numDispatchTokenCurRank = parts.numDispatchTokenCurRank;
    this.numInputTokensPerRank = parts.numInputTokensPerRank;
    this.topkIndicesTensor = parts.topkIndicesTensor;
    this.tokenDstScatterIdx = parts.tokenDstScatterIdx;
    this.skippedTokenMappingIndices = parts.skippedTokenMappingIndices;
    this.skippedTokenTopkMappingIndices = parts.skippedTokenTopkMappingIndices;
    this.repeatedRows = parts.repeatedRows;
    this.tokenDstRank = parts.tokenDstRank;
    this.numRecvTokens = parts.numRecvTokens;
    this.numRecvTokensPerExpert = parts.numRecvTokensPerExpert;
  }

  dispose(): void {
    this.numInputTokensPerRank.dispose();
    this.tokenDstScatterIdx.dispose();
    this.tokenDstRank.dispose();
    this.skippedTokenMappingIndices?.dispose();
    this.skippedTokenTopkMappingIndices?.dispose();
    this.repeatedRows?.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}
