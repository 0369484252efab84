// EPAllToAllLayoutDesc: what combine needs to know of a layer dispatch.
import type { Tensor } from '../../device/tensor.ts';
import type { RoutedTokens } from '../across-hosts/routed-tokens.ts';
import type { LayerRows } from './cpu/count-layer-rows.ts';
import type { HostLayout } from './host-layout.ts';

/** Rows and counts, of the layer's offsetDtype. */
export type OffsetTensor = Tensor<'i32' | 'i64'>;

/** What kernels of GPUs need to know of the tokens of one dispatch that cross to other hosts, or come from there. */
export interface CrossingTables {
  /** i32 [maxTokensPerRank, ways]: place of the token among those that go to that host, or -1. */
  readonly wayTable: Tensor<'i32'>;
  /** LayerRoute. */
  readonly route: Tensor<'u8'>;
  /** i32 [served, maxTokensPerRank, K] each: see LayerDispatchArguments. */
  readonly forwardRows: Tensor<'i32'>;
  readonly forwardRanks: Tensor<'i32'>;
}

/** What only the layer reads of a descriptor. */
export interface LayoutTables {
  /** The context of the layer that made the descriptor. */
  readonly owner: object;
  /** Number of the dispatch among the layer's; ranks that use descriptors of different dispatches together get an error. */
  readonly sequence: number;
  /** i32 [1, maxTokensPerRank, K]: see tokenDstScatterIdx. */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K]: the rank of each choice's expert, -1 for dropped ones. */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [recv, K]: see skippedTokenTopkMappingIndices. Only with local combine. */
  readonly duplicates: Tensor<'i32'> | undefined;
  /**
   * i32 [n]: first rows of the n tokens that have several rows here, in no particular order. Only on GPUs with local combine. With
   * a bound on the rows, n is the most there can be.
   */
  readonly repeatedRows: Tensor<'i32'> | undefined;
  /** LayerPlan of the dispatch, where only the GPU knows it and local combine needs it. */
  readonly plan: Tensor<'u8'> | undefined;
  /** What crosses to other hosts; absent in a group on one. */
  readonly routed: RoutedTokens | undefined;
  /** What there is to tell by node; absent in a group on one host. */
  readonly hostLayout: HostLayout | undefined;
  /** On GPUs, what crosses to other hosts; absent in a group on one. */
  readonly crossing: CrossingTables | undefined;
  /** On CPUs, the rows of this rank's tokens; for metrics. */
  readonly sentRows: LayerRows | undefined;
  /** All that dispose() frees. */
  readonly owned: readonly Disposable[];
}

interface LayoutDescParts {
  readonly numDispatchTokenCurRank: number;
  readonly numInputTokensPerRank: OffsetTensor;
  readonly topkIndicesTensor: Tensor<'i32' | 'i64'>;
  readonly tokenDstScatterIdx: OffsetTensor;
  readonly skippedTokenMappingIndices: OffsetTensor;
  readonly skippedTokenTopkMappingIndices: OffsetTensor;
  readonly numRecvTokens: number;
  readonly numRecvTokensPerExpert: readonly number[];
  readonly recvCounts: Tensor<'i32'> | undefined;
}

/** Owned by the caller; valid as long as the layer. Dispose it when combine is done (else the garbage collector does). */
export class EPAllToAllLayoutDesc implements Disposable {
  /** Tokens that this rank dispatched. */
  readonly numDispatchTokenCurRank: number;
  /** [worldSize], of offsetDtype: tokens that each rank dispatched. */
  readonly numInputTokensPerRank: OffsetTensor;
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
  /** Rows of the results: as many as were received, or numWorstTokens if that was given. */
  readonly numRecvTokens: number;
  /**
   * Rows received per local expert, in the order in which they stand in the output. Empty after a GPU's dispatch with
   * numWorstTokens, for which the host does not wait.
   */
  readonly numRecvTokensPerExpert: readonly number[];
  /** i32 [experts of this rank]: the same in the device's memory; only with numWorstTokens. */
  readonly recvCounts: Tensor<'i32'> | undefined;
  /** @internal */
  readonly tables: LayoutTables;
  readonly #topkIndices: Tensor<'i32' | 'i64'>;
  readonly #dstScatterIdx: OffsetTensor;

  /** @internal */
  constructor(parts: LayoutDescParts, tables: LayoutTables) {
    this.numDispatchTokenCurRank = parts.numDispatchTokenCurRank;
    this.numInputTokensPerRank = parts.numInputTokensPerRank;
    this.#topkIndices = parts.topkIndicesTensor;
    this.#dstScatterIdx = parts.tokenDstScatterIdx;
    this.skippedTokenMappingIndices = parts.skippedTokenMappingIndices;
    this.skippedTokenTopkMappingIndices = parts.skippedTokenTopkMappingIndices;
    this.numRecvTokens = parts.numRecvTokens;
    this.numRecvTokensPerExpert = parts.numRecvTokensPerExpert;
    this.recvCounts = parts.recvCounts;
    this.tables = tables;
  }

  /**
   * On several hosts [nodes, 2, maxTokensPerRank], of offsetDtype: what this rank was asked to take for its node, by the rank of each
   * other node whose place is that of this one. [node, 0] has where ranges of that rank's tokens begin, [node, 1] where they
   * end, exclusive; behind them, and for this node, stands -1. A range holds consecutive tokens that chose an expert of this
   * node, within a tile of 256. Undefined on one host. Made when it is first asked for, as the two below.
   */
  get sendReqsRecvTensor(): OffsetTensor | undefined {
    return this.tables.hostLayout?.sendReqs;
  }

  /**
   * [T, K]: the caller's own tensor of expert indices, not owned. On several hosts [nodes, maxTokensPerRank, K], of the same dtype:
   * of the rank of each node whose place is that of this one, and for this node of this rank; -1 behind its tokens.
   */
  get topkIndicesTensor(): Tensor<'i32' | 'i64'> {
    return this.tables.hostLayout?.topkIndices ?? this.#topkIndices;
  }

  /**
   * [nodes, maxTokensPerRank, K], of offsetDtype: for the same tokens, the row of each choice of an expert of this node in the output
   * of the expert's rank; -1 for choices of other nodes, dropped and absent ones.
   */
  get tokenDstScatterIdx(): OffsetTensor {
    return this.tables.hostLayout?.dstScatterIdx ?? this.#dstScatterIdx;
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
