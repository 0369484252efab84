// EPAllToAllLayoutDesc: what combine needs to know of a layer dispatch.
import type { DType } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostTokens, RoutedTokens, TokenChoices } from '../across-hosts/routed-tokens.ts';
import type { LayerRows } from '../buffer/count-rows.ts';
import type { EPConfig } from './ep-config.ts';
import type { HostRoutes } from '../../group/network/host-routes.ts';

/** Rows and counts, of the layer's offsetDtype. */
type OffsetTensor = Tensor<'i32' | 'i64'>;

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
  readonly routed?: RoutedTokens | undefined;
  /** What there is to tell by node; absent in a group on one host. */
  readonly hostLayout?: HostLayout | undefined;
  /** On GPUs, what crosses to other hosts; absent in a group on one. */
  readonly crossing?: CrossingTables | undefined;
  /** On CPUs, the rows of this rank's tokens; for metrics. */
  readonly sentRows?: LayerRows | undefined;
  /** All that close() frees. */
  readonly owned: readonly Disposable[];
}

/** What a dispatch has made, of which a descriptor keeps what is needed beyond the next one. */
interface DispatchTables extends Omit<LayoutTables, 'duplicates' | 'repeatedRows' | 'owned'> {
  /** What the caller passed. */
  readonly input: { readonly numTokens: number; readonly topkIdx: Tensor<'i32' | 'i64'> };
  /** What owns the tables that were made for the descriptor, which are views. It belongs to the descriptor from now on. */
  readonly set: Disposable;
  /** i32 [ranks]. */
  readonly numInputTokens: Tensor<'i32'>;
  readonly numRecvTokens: number;
  readonly numRecvTokensPerExpert: readonly number[];
  /** i32 [experts of this rank]; only with a bound on the rows. */
  readonly recvCounts: Tensor<'i32'> | undefined;
  /** i32 [recv], [recv, K] and [n] in the window, where the next dispatch overwrites them. */
  readonly firstRows: Tensor<'i32'>;
  readonly duplicates: Tensor<'i32'>;
  readonly repeated: Tensor<'i32'> | undefined;
}

/** How a device makes tables of its own from others. */
interface TableCopies {
  /** Combine needs the tables in the window, and may come after the next dispatch. */
  readonly localCombine: boolean;
  readonly offsetDtype: 'i32' | 'i64';
  copy<D extends 'i32' | 'u8'>(table: Tensor<D>): Tensor<D>;
  widen(table: Tensor<'i32'>): Tensor<'i64'>;
}

/** Owned by the caller; valid as long as the layer. Close it when combine is done (else the garbage collector does). */
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
  constructor(made: DispatchTables, copies: TableCopies) {
    const { owner, sequence, input, rowTable, rankTable, routed, hostLayout, crossing, sentRows } = made;
    const owned: Disposable[] = [made.set];
    if (routed) owned.push(routed);
    if (hostLayout) owned.push(hostLayout);
    // What callers see of a descriptor are views, so that only the descriptor frees its tables.
    const keep = <D extends DType>(tensor: Tensor<D>): Tensor<D> => {
      owned.push(tensor);
      return tensor.reshape(tensor.shape);
    };
    const kept = <D extends 'i32' | 'u8'>(table: Tensor<D> | undefined): Tensor<D> | undefined =>
      copies.localCombine && table !== undefined ? keep(copies.copy(table)) : undefined;
    const offsets = (table: Tensor<'i32'>): OffsetTensor =>
      copies.offsetDtype === 'i32' ? table : keep(copies.widen(table));
    const firstRows = kept(made.firstRows);
    const duplicates = kept(made.duplicates);
    const repeatedRows = kept(made.repeated);
    const plan = kept(made.plan);
    this.numDispatchTokenCurRank = input.numTokens;
    this.numInputTokensPerRank = offsets(made.numInputTokens);
    this.#topkIndices = input.topkIdx;
    // On several hosts the descriptor tells it by node.
    this.#dstScatterIdx = hostLayout ? rowTable : offsets(rowTable);
    this.skippedTokenMappingIndices = offsets(firstRows ?? made.firstRows);
    this.skippedTokenTopkMappingIndices = offsets(duplicates ?? made.duplicates);
    this.numRecvTokens = made.numRecvTokens;
    this.numRecvTokensPerExpert = made.numRecvTokensPerExpert;
    this.recvCounts = made.recvCounts;
    const tables = { owner, sequence, rowTable, rankTable, duplicates, repeatedRows, plan };
    this.tables = { ...tables, routed, hostLayout, crossing, sentRows, owned };
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

  /** True after close(). @internal */
  get disposed(): boolean {
    return this.tables.rowTable.storage.disposed;
  }

  /** Gives its tables back at once rather than when it is collected. Idempotent. */
  close(): void {
    for (const one of this.tables.owned) one[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

// What a descriptor of a layer on several hosts tells by node, as Triton-distributed lays it out. Made when it is asked for: the
// layer itself works with shorter tables.

interface HostLayoutParts {
  readonly device: CpuDevice;
  readonly config: EPConfig;
  readonly routes: HostRoutes;
  readonly routed: RoutedTokens;
  /** i32 [1, maxTokensPerRank, K] and [T, K]. */
  readonly rowTable: Tensor<'i32'>;
  readonly rankTable: Tensor<'i32'>;
  /** Dtype of the caller's choices. */
  readonly indexDtype: 'i32' | 'i64';
}

/** Tokens of the rank of one node whose place there is that of this rank. */
interface NodeTokens {
  /** Tokens with an expert on this host, and the rows of their choices here; absent for this rank's own. */
  readonly list: HostTokens | undefined;
  /** i32 [T, K] */
  readonly choices: Tensor<'i32'>;
}

export class HostLayout implements Disposable {
  readonly #parts: HostLayoutParts;
  /** What callers see, and what owns it. */
  readonly #made = new Map<string, Tensor<'i32' | 'i64'>>();
  readonly #owned: Tensor[] = [];
  #disposed = false;

  constructor(parts: HostLayoutParts) {
    this.#parts = parts;
  }

  /** [nodes, 2, maxTokensPerRank], of offsetDtype. May fail with WL_MEMORY, as the others. */
  get sendReqs(): Tensor<'i32' | 'i64'> {
    const { config } = this.#parts;
    return this.#make(
      'sendReqsRecvTensor',
      [2, config.maxTokensPerRank],
      config.offsetDtype,
      (cells, _node, tokens) => {
        if (tokens.list !== undefined) fillSendRequests(cells, tokens.list.tokens.view());
      },
    );
  }

  /** [nodes, maxTokensPerRank, K], of the dtype of the caller's choices. */
  get topkIndices(): Tensor<'i32' | 'i64'> {
    const { config, indexDtype } = this.#parts;
    return this.#make(
      'topkIndicesTensor',
      [config.maxTokensPerRank, config.maxTopk],
      indexDtype,
      (cells, _node, { choices }) => cells.set(choices.view()),
    );
  }

  /** [nodes, maxTokensPerRank, K], of offsetDtype. */
  get dstScatterIdx(): Tensor<'i32' | 'i64'> {
    const { config } = this.#parts;
    const { maxTokensPerRank, maxTopk: topk, offsetDtype } = config;
    return this.#make('tokenDstScatterIdx', [maxTokensPerRank, topk], offsetDtype, (cells, _node, { list }) => {
      if (list === undefined) return this.#fillOwnRows(cells);
      const [tokens, places] = [list.tokens.view(), list.places.view()];
      for (let i = 0; i < list.count; i++) cells.set(places.subarray(i * topk, (i + 1) * topk), tokens[i]! * topk);
    });
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    this.#disposed = true;
    for (const tensor of this.#owned) tensor.close();
  }

  /** This rank's own choices of experts on this host. */
  #fillOwnRows(cells: Int32Array): void {
    const { routes, rowTable, rankTable } = this.#parts;
    const here = new Set(routes.hosts[routes.host]);
    const rows = rowTable.view();
    for (const [cell, rank] of rankTable.view().entries()) if (here.has(rank)) cells[cell] = rows[cell]!;
  }

  #make(
    name: string,
    shape: readonly number[],
    dtype: 'i32' | 'i64',
    fill: (cells: Int32Array, node: number, tokens: NodeTokens) => void,
  ): Tensor<'i32' | 'i64'> {
    const before = this.#made.get(name);
    if (before !== undefined) return before;
    if (this.#disposed) throw new WeftlineError('WL_CLOSED', `Cannot make ${name} of a closed descriptor`);
    const { device, routes } = this.#parts;
    const perNode = shape.reduce((product, extent) => product * extent, 1);
    const values = new Int32Array(routes.hosts.length * perNode).fill(-1);
    for (const node of routes.hosts.keys()) {
      const tokens = this.#tokensOf(node);
      if (tokens !== undefined) fill(values.subarray(node * perNode, (node + 1) * perNode), node, tokens);
    }
    const tensor: Tensor<'i32' | 'i64'> = device.empty(dtype, [routes.hosts.length, ...shape]);
    const view = tensor.view();
    if (view instanceof BigInt64Array) view.set(BigInt64Array.from(values, BigInt));
    else view.set(values);
    this.#owned.push(tensor);
    const shown = tensor.reshape(tensor.shape);
    this.#made.set(name, shown);
    return shown;
  }

  /** Undefined for a host that has fewer ranks than this rank's place. */
  #tokensOf(node: number): NodeTokens | undefined {
    const { routes, routed } = this.#parts;
    const { own, served } = routed.choices as TokenChoices;
    if (node === routes.host) return { list: undefined, choices: own };
    const slot = routes.served.findIndex((source) => source.host === node && source.hasSamePlace);
    return slot === -1 ? undefined : { list: routed.served[slot], choices: served[slot]! };
  }
}

// Send requests as Triton-distributed has them: ranges of consecutive tokens that go to a node.

/** A range does not reach beyond its tile. */
const TILE_TOKENS = 256;

/**
 * [nodes, 2, maxTokensPerRank]: ranges of this rank's tokens that chose an expert of each other node; -1 behind them and for the
 * own node.
 * @param ids [T, K]; what is no expert is left out.
 * @param hostOf Of each expert.
 * @param of The own node, how many there are, choices of a token and the most tokens.
 */
export function sendRequests(
  ids: Int32Array | BigInt64Array,
  hostOf: readonly number[],
  of: { readonly host: number; readonly hosts: number; readonly maxTopk: number; readonly maxTokensPerRank: number },
): Int32Array {
  const { host, hosts, maxTopk, maxTokensPerRank } = of;
  const requests = new Int32Array(hosts * 2 * maxTokensPerRank).fill(-1);
  for (let node = 0; node < hosts; node++) {
    if (node === host) continue;
    const tokens: number[] = [];
    for (let token = 0; token < ids.length / maxTopk; token++) {
      const choices = ids.subarray(token * maxTopk, (token + 1) * maxTopk);
      if (choices.some((expert: number | bigint) => hostOf[Number(expert)] === node)) tokens.push(token);
    }
    fillSendRequests(
      requests.subarray(node * 2 * maxTokensPerRank, (node + 1) * 2 * maxTokensPerRank),
      Int32Array.from(tokens),
    );
  }
  return requests;
}

/**
 * Puts the ranges of the tokens, which ascend, to the first of `cells`: [2, maxTokensPerRank], the starts and then the ends, each
 * end exclusive. The rest stays as it is.
 */
export function fillSendRequests(cells: Int32Array, tokens: Int32Array): void {
  const ends = cells.length / 2;
  let ranges = 0;
  for (const [i, token] of tokens.entries()) {
    const follows = i > 0 && tokens[i - 1] === token - 1 && token % TILE_TOKENS !== 0;
    if (!follows) cells[ranges++] = token;
    cells[ends + ranges - 1] = token + 1;
  }
}
