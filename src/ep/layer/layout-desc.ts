// EPAllToAllLayoutDesc: what combine needs to know of a layer dispatch.
import type { Tensor } from '../../device/tensor.ts';
import type { RoutedTokens } from '../across-hosts/routed-tokens.ts';

/** Rows and counts, of the layer's offsetDtype. */
export type OffsetTensor = Tensor<'i32' | 'i64'>;

/** What only the layer reads of a descriptor. */
export interface LayoutTables {
  /** The context of the layer that made the descriptor. */
  readonly owner: object;
  /** Number of the dispatch among the layer's; ranks that use descriptors of different dispatches together get an error. */
  readonly sequence: number;
  /** i32 [1, maxTokens, K]: see tokenDstScatterIdx. */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K]: the rank of each choice's expert, -1 for dropped ones. */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [recv, K]: see skippedTokenTopkMappingIndices. Only with local combine. */
  readonly duplicates: Tensor<'i32'> | undefined;
  /** i32 [n]: first rows of the n tokens that have several rows here, in no particular order. Only on GPUs with local combine. */
  readonly repeatedRows: Tensor<'i32'> | undefined;
  /** What crosses to other hosts; absent in a group on one. */
  readonly routed: RoutedTokens | undefined;
  /** All that dispose() frees. */
  readonly owned: readonly Disposable[];
}

export interface LayoutDescParts {
  readonly numDispatchTokenCurRank: number;
  readonly numInputTokensPerRank: OffsetTensor;
  readonly topkIndicesTensor: Tensor<'i32' | 'i64'>;
  readonly tokenDstScatterIdx: OffsetTensor;
  readonly skippedTokenMappingIndices: OffsetTensor;
  readonly skippedTokenTopkMappingIndices: OffsetTensor;
  readonly numRecvTokens: number;
  readonly numRecvTokensPerExpert: readonly number[];
}

/** Owned by the caller; valid as long as the layer. Dispose it when combine is done (else the garbage collector does). */
export class EPAllToAllLayoutDesc implements Disposable {
  /** Tokens that this rank dispatched. */
  readonly numDispatchTokenCurRank: number;
  /** [worldSize], of offsetDtype: tokens that each rank dispatched. */
  readonly numInputTokensPerRank: OffsetTensor;
  /** Send requests of other nodes: always absent, as what crosses between hosts is kept in tables of the layer's own. */
  readonly sendReqsRecvTensor: undefined;
  /** [T, K]: the caller's expert indices. Not owned. */
  readonly topkIndicesTensor: Tensor<'i32' | 'i64'>;
  /** [1, maxTokens, K], of offsetDtype: row of (token, choice) in the output of the expert's rank; -1 for dropped or absent ones. */
  readonly tokenDstScatterIdx: OffsetTensor;
  /**
   * [recv], of offsetDtype: the first row here of the row's token. Without local combine and with i32 it lies in the
   * window and is valid until the next dispatch.
   */
  readonly skippedTokenMappingIndices: OffsetTensor;
  /**
   * [recv, K], of offsetDtype: for first rows, the row of each choice of the token here or -1; -1 for other rows. Valid as
   * long as skippedTokenMappingIndices.
   */
  readonly skippedTokenTopkMappingIndices: OffsetTensor;
  /** Rows received. */
  readonly numRecvTokens: number;
  /** Rows received per local expert, in the order in which they stand in the output. */
  readonly numRecvTokensPerExpert: readonly number[];
  /** @internal */
  readonly tables: LayoutTables;

  /** @internal */
  constructor(parts: LayoutDescParts, tables: LayoutTables) {
    this.numDispatchTokenCurRank = parts.numDispatchTokenCurRank;
    this.numInputTokensPerRank = parts.numInputTokensPerRank;
    this.topkIndicesTensor = parts.topkIndicesTensor;
    this.tokenDstScatterIdx = parts.tokenDstScatterIdx;
    this.skippedTokenMappingIndices = parts.skippedTokenMappingIndices;
    this.skippedTokenTopkMappingIndices = parts.skippedTokenTopkMappingIndices;
    this.numRecvTokens = parts.numRecvTokens;
    this.numRecvTokensPerExpert = parts.numRecvTokensPerExpert;
    this.tables = tables;
  }

  /** True after dispose(). */
  get disposed(): boolean {
    return this.tables.rowTable.storage.disposed;
  }

  /** Gives its tables back at once rather than when it is collected. Idempotent. */
  dispose(): void {
    for (const one of this.tables.owned) one[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}
