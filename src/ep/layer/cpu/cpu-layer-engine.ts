// The CPU's way of a layer's call: tables in WebAssembly memory, kernels that write into the windows, barriers between.
import { elementFormats } from '../../../abi/element-formats.ts';
import { noteImbalance } from '../../../core/counts.ts';
import { type CallWait, remaining, sooner } from '../../../core/deadline.ts';
import { dtypes } from '../../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { RoutedTokens } from '../../across-hosts/routed-tokens.ts';
import { countLayerRows, type LayerRows, layerRows } from '../../buffer/count-rows.ts';
import { computeLayout, emptyLayout, type LayoutShape, throwIfRefused } from '../../buffer/dispatch-layout.ts';
import type { EpCallOptions } from '../../buffer/call-arguments.ts';
import type { CpuLayerMemory } from './cpu-layer-memory.ts';
import type { DispatchCombineContext } from '../dispatch-combine-context.ts';
import type { EPConfig, TokenDType } from '../ep-config.ts';
import {
  applyScatterIndices,
  dispatchSplits,
  type ExpertPlan,
  planExperts,
  requireRowBounds,
  throwIfOutOfBlock,
  throwIfRepeated,
} from '../expert-plan.ts';
import type { CheckedLayerCombine, LayerInput } from '../layer-arguments.ts';
import {
  type DispatchStages,
  type LayerCombineResult,
  LayerDispatchResult,
  type LayerEngine,
  type LayerEngineOptions,
  type LayerReceived,
} from '../layer-engine.ts';
import { EPAllToAllLayoutDesc } from '../layout-desc.ts';
import { agreeOn } from '../../../group/agree.ts';
import { type Call, callWord } from '../../../group/calls.ts';
import type { ExchangeHeader, ExchangeResult } from '../../../group/exchange.ts';
import { eventAtOnce } from '../../../group/overlap.ts';
import type { LocalBarrier } from '../../../windows/local-barrier.ts';
import { isSharedByAll } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';

// Row and rank of every choice of a layer dispatch, from prefix sums.

interface PlaceTables {
  /** i32 [1, maxTokensPerRank, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [ranks] and, with a bound on the rows, i32 [experts of this rank]; filled in when the rows have come. */
  readonly numInputTokens: Tensor<'i32'>;
  readonly recvCounts: Tensor<'i32'> | undefined;
  /** Owns the tables above, which are views. */
  readonly set: Disposable;
  readonly sentRows: LayerRows;
  /** What crosses to other hosts, once it is known. */
  routed?: RoutedTokens;
}

interface PlaceRowsOptions {
  readonly input: LayerInput;
  readonly plan: ExpertPlan;
  /** The layer's context. */
  readonly context: { readonly config: EPConfig; readonly group: RankGroup };
}

/** Fails with WL_MEMORY. */
function placeRows(
  device: CpuDevice,
  { nextRow, layout }: LayerTables,
  { input: { topkIdx, numTokens, rowBound }, plan, context: { config, group } }: PlaceRowsOptions,
): PlaceTables {
  const { maxTopk: topk, maxTokensPerRank, numExperts, numExpertsPerRank } = config;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    rowTable: tensors.empty('i32', [1, maxTokensPerRank, topk]),
    rankTable: tensors.empty('i32', [numTokens, topk]),
    numInputTokens: tensors.empty('i32', [group.size]),
    recvCounts: rowBound === 0 ? undefined : tensors.empty('i32', [numExpertsPerRank]),
  }));
  const { rowTable, rankTable } = made;
  rowTable.view().fill(-1, numTokens * topk);
  nextRow.view().set(plan.firstRow);
  device.kernels.expandedRows(
    topkIdx.address,
    dtypes[topkIdx.dtype].bytes,
    numTokens,
    topk,
    numExperts,
    numExpertsPerRank,
    nextRow.address,
    rowTable.address,
    rankTable.address,
  );
  return { ...made, set, sentRows: layerRows(group, layout) };
}

/** Marks the rows of a bounded result that stand for nothing, behind the received ones. */
function markTail(
  tables: {
    /** [rows] */
    readonly firstRows: Tensor<'i32'>;
    /** [rows, K] */
    readonly duplicates: Tensor<'i32'>;
    /** [rows] */
    readonly weights: Tensor<'f32' | 'bf16'> | undefined;
  },
  received: number,
): void {
  const { firstRows, duplicates, weights } = tables;
  firstRows.view().fill(-1, received);
  duplicates.view().fill(-1, received * duplicates.shape[1]!);
  weights?.view().fill(0, received);
}

// The small tables that a layer's kernels work with, all allocated before the ranks agree that they can begin.

type LayerTables = ReturnType<typeof makeLayerTables>;

/** Fails with WL_MEMORY. */
function makeLayerTables(device: CpuDevice, { maxTokensPerRank, maxTopk, numExperts, worldSize }: EPConfig) {
  const shape: LayoutShape = { ranks: worldSize, experts: numExperts, dropped: numExperts, name: 'topkIdx' };
  return TensorSet.together(device, (tensors) => ({
    shape,
    layout: emptyLayout(tensors, maxTokensPerRank, shape),
    /** The next row of (expert, this source) at the expert's rank. */
    nextRow: tensors.empty('i32', [numExperts]),
    /** Addresses of the rows of one sum. */
    sources: tensors.empty('i32', [maxTopk]),
  }));
}

/** Collective: every rank has its tables, or all fail with the same WL_MEMORY. */
export async function createCpuLayerEngine(
  context: DispatchCombineContext,
  device: CpuDevice,
  memory: CpuLayerMemory,
  options: LayerEngineOptions & CallWait,
): Promise<LayerEngine> {
  const prepare = (): LayerTables => makeLayerTables(device, context.config);
  const agreement = { what: 'EPAll2AllLayer tables', config: {}, prepare, release };
  const tables = await agreeOn(context.group, agreement, options);
  const { enableLocalCombine } = options;
  return new CpuLayerEngine(context, { device, memory, tables, enableLocalCombine });
}

function release(tables: LayerTables): void {
  tables[Symbol.dispose]();
}

interface Parts {
  readonly device: CpuDevice;
  readonly memory: CpuLayerMemory;
  readonly tables: LayerTables;
  readonly enableLocalCombine: boolean;
}

class CpuLayerEngine implements LayerEngine {
  readonly #context: DispatchCombineContext;
  readonly #device: CpuDevice;
  readonly #memory: CpuLayerMemory;
  readonly #tables: LayerTables;
  readonly #localCombine: boolean;
  /** Dispatches so far; alike on all ranks, because they are collective. */
  #dispatches = 0;

  constructor(context: DispatchCombineContext, { device, memory, tables, enableLocalCombine }: Parts) {
    this.#context = context;
    this.#device = device;
    this.#memory = memory;
    this.#tables = tables;
    this.#localCombine = enableLocalCombine;
  }

  get #barrier(): LocalBarrier {
    return this.#memory.control.barrier;
  }

  throwIfUnusable(): void {
    this.#barrier.throwIfUnusable(this.#memory.network?.exchange.network);
  }

  async dispatch(input: LayerInput, options: EpCallOptions): Promise<LayerDispatchResult<TokenDType>> {
    const stages = await this.prepare(input, options);
    await stages.makeRoom(options);
    await stages.send(options);
    return stages.finish();
  }

  async prepare(input: LayerInput, options: EpCallOptions): Promise<DispatchStages> {
    await options.previousEvent?.wait(remaining(options));
    const { group, config } = this.#context;
    const { exchange } = this.#memory;
    const { layout, shape } = this.#tables;
    traceBegin('layer.dispatch.counts');
    const refusal = computeLayout(input.topkIdx, layout, shape);
    const perHost = this.#memory.network?.exchange.countHosts(this.#device, layout.isTokenInRank, input.numTokens);
    const [perRank, perExpert] = [layout.numTokensPerRank.view(), layout.numTokensPerExpert.view()];
    exchange.publish(this.#exchangeHeader(input), { perRank, perExpert, ...(perHost && { perHost }) }, refusal?.status);
    await this.#meet({ kind: 'layer dispatch' }, 'opening', { ...options, withCounts: true });
    this.#dispatches += 1;
    throwIfRefused(exchange, shape, refusal);
    const counts = exchange.collect();
    const plan = planExperts(counts, group.rank, config.numExperts);
    requireRowBounds(counts, plan, group.ranks);
    traceEnd('layer.dispatch.counts');
    noteImbalance('layer', plan.recvRows, group.size);
    const firstExpert = group.rank * config.numExpertsPerRank;
    let tables: PlaceTables | undefined;
    return {
      recvRows: [...plan.recvRows],
      perExpert: [...plan.blockRows.subarray(firstExpert, firstExpert + config.numExpertsPerRank)],
      splits: () => Promise.resolve(dispatchSplits(config, counts)),
      sendReqs: () => this.#memory.network?.requests(input),
      // Everyone knows everyone's rows, so all decide alike whether the output must grow, and fail alike if it cannot.
      makeRoom: (wait) => this.#makeRoom(Math.max(...plan.recvRows), wait),
      send: async (wait) => {
        tables = await this.#untilFailure(() =>
          this.#device.allocating(() => placeRows(this.#device, this.#tables, { input, plan, context: this.#context })),
        );
        await this.#send(input, { plan, tables, options: wait, counts });
      },
      finish: async () => {
        if (tables === undefined) throw new WeftlineError('WL_INTERNAL', 'A dispatch was finished before it was sent');
        const parts = { plan, tables, numTokens: counts.numTokens };
        const received = await this.#untilFailure(() => this.#device.allocating(() => this.#receive(input, parts)));
        return new LayerDispatchResult(received, eventAtOnce(options));
      },
    };
  }

  async combine(
    { x, desc, out }: CheckedLayerCombine,
    options: EpCallOptions,
  ): Promise<LayerCombineResult<TokenDType>> {
    await options.previousEvent?.wait(remaining(options));
    const { kernels } = this.#device;
    const { maxTopk: topk, hidden, rowBytes, tokenDtype } = this.#context.config;
    const { duplicates, rowTable, rankTable, routed, sentRows, sequence } = desc.tables;
    const shape = [desc.numDispatchTokenCurRank, hidden];
    const combinedX = out ?? (await this.#device.allocating(() => this.#device.empty(tokenDtype, shape)));
    const own = this.#memory.view(tokenDtype, 'expertRows', [desc.numRecvTokens, hidden]);
    const format = elementFormats[tokenDtype];
    const sources = this.#tables.sources.address;
    if (x.address !== own.address) kernels.copyBytes(own.address, x.address, x.bytes);
    if (duplicates !== undefined) {
      traceBegin('layer.combine.duplicates');
      kernels.sumDuplicates(own.address, rowBytes, desc.numRecvTokens, topk, duplicates.address, sources, format);
      traceEnd('layer.combine.duplicates');
    }
    const call: Call = { kind: 'layer combine', handle: sequence };
    await this.#untilFailure(async () => {
      this.#memory.exchange.beginCall();
      this.#memory.network?.exchange.announce(this.#memory.exchange, call);
      await this.#barrier.wait(callWord(call, 'opening'), options);
      traceBegin('layer.combine.rows');
      if (routed) {
        const of = { out: combinedX, routed, counts: this.#memory.exchange };
        await this.#memory.network!.combine(of, { ...options, localCombine: this.#localCombine });
      } else {
        kernels.gatherSum(
          combinedX.address,
          rowBytes,
          desc.numDispatchTokenCurRank,
          topk,
          rowTable.address,
          rankTable.address,
          this.#memory.bases('expertRows'),
          this.#localCombine ? 1 : 0,
          0,
          0,
          sources,
          format,
        );
      }
      traceEnd('layer.combine.rows');
      if (sentRows)
        countLayerRows('combine', this.#localCombine ? sentRows.byRank : sentRows.byExpert, routed, rowBytes);
      traceBegin('layer.closing');
      await this.#barrier.wait(callWord(call, 'closing'), options);
      traceEnd('layer.closing');
    });
    return { combinedX, event: eventAtOnce(options) };
  }

  async barrier({ intraNodeOnly, ...options }: CallWait & { readonly intraNodeOnly: boolean }): Promise<void> {
    const call: Call = { kind: 'barrier', detail: intraNodeOnly ? 1 : 0 };
    if (intraNodeOnly) return this.#untilFailure(() => this.#barrier.wait(callWord(call, 'opening'), options));
    this.#memory.exchange.beginCall();
    await this.#meet(call, 'opening', { ...options, withCounts: false });
    // The last call before close(), often: peers must not find the link closed in place of the record.
    await this.#untilFailure(() => this.#memory.network?.exchange.settle(options));
  }

  barrierOnStream(): never {
    throw invalidArgument('stream', 'a stream', 'undefined, because a CPU device has no streams');
  }

  close(): Promise<void> {
    this.#tables[Symbol.dispose]();
    return Promise.resolve();
  }

  /** Returns when every rank has come to this point of the call, and this host has the records of all. */
  #meet(
    call: Call,
    phase: 'opening' | 'middle',
    { withCounts, ...options }: CallWait & { readonly withCounts: boolean },
  ): Promise<void> {
    return this.#untilFailure(async () => {
      const network = this.#memory.network?.exchange;
      network?.announce(this.#memory.exchange, call, withCounts);
      await network?.meet(this.#memory.exchange, sooner(options));
      await this.#barrier.wait(callWord(call, phase), options);
    });
  }

  /** A part of a call whose failure ends the layer's use for all ranks; they hear of it at once. */
  async #untilFailure<T>(work: () => T | Promise<T>): Promise<T> {
    try {
      return await this.#barrier.orAbort(work);
    } catch (error) {
      this.#memory.network?.exchange.network.giveUp(error);
      throw error;
    }
  }

  #exchangeHeader(input: LayerInput): ExchangeHeader {
    return {
      topk: this.#context.config.maxTopk,
      rowBytes: dtypes[this.#context.config.tokenDtype].bytes,
      scaleBytes: 0,
      indexBytes: 0,
      weightBytes: input.topkWeights ? dtypes[input.topkWeights.dtype].bytes : 0,
      scattered: input.fullScatterIndices ? 1 : 0,
      numTokens: input.numTokens,
      rowBound: input.rowBound,
    };
  }

  /** Fails on every rank alike, unless a rank does not answer: then the layer is given up for all. */
  async #makeRoom(rows: number, options: CallWait): Promise<void> {
    try {
      await this.#context.reallocateDispatchOutputBuf(rows, remaining(options));
    } catch (error) {
      if (isSharedByAll(error)) throw error;
      await this.#untilFailure(() => Promise.reject(error as Error));
    }
  }

  /** Rows from the caller's indices instead; every rank gets the same error when one of them names a wrong row. */
  async #applyScatter(
    fullScatterIndices: Tensor<'i32' | 'i64'>,
    { topkIdx }: LayerInput,
    { plan, tables, options }: { plan: ExpertPlan; tables: PlaceTables; options: CallWait },
  ): Promise<void> {
    const { exchange } = this.#memory;
    const bad = applyScatterIndices({ topkIdx, fullScatterIndices, ...tables }, plan);
    exchange.beginCall();
    exchange.publishStatus(bad + 1);
    // An empty token index marks a row that nobody wrote.
    this.#sourceTokens(plan).fill(-1);
    await this.#meet({ kind: 'layer dispatch' }, 'middle', { ...options, withCounts: false });
    throwIfOutOfBlock(exchange.statuses(), this.#context.group.ranks);
  }

  /** Collective. */
  async #send(input: LayerInput, { plan, tables, options, counts }: SendPlan): Promise<void> {
    if (input.fullScatterIndices) {
      traceBegin('layer.dispatch.places');
      await this.#applyScatter(input.fullScatterIndices, input, { plan, tables, options });
      traceEnd('layer.dispatch.places');
    }
    await this.#untilFailure(async () => {
      traceBegin('layer.dispatch.rows');
      this.#sendBeside(input, tables);
      const { network } = this.#memory;
      if (network === undefined) this.#sendRows(input, tables, 0, input.numTokens);
      else {
        tables.routed = network.route(input, tables, counts);
        const of = { input, routed: tables.routed };
        await network.dispatch(of, (first, count) => this.#sendRows(input, tables, first, count), options);
      }
      traceEnd('layer.dispatch.rows');
      countLayerRows('dispatch', tables.sentRows.byExpert, tables.routed, this.#context.config.rowBytes);
      traceBegin('layer.closing');
      await this.#barrier.wait(callWord({ kind: 'layer dispatch' }, 'closing'), options);
      traceEnd('layer.closing');
    });
    if (input.fullScatterIndices) await this.#requireAllWritten(plan, options);
  }

  /** Sends each row to the ranks of this host, once per expert: a copy at the far side would read and write the same memory again. */
  // oxlint-disable-next-line max-params -- hot path: called per slice of tokens
  #sendRows({ x }: LayerInput, { rowTable, rankTable }: PlaceTables, first: number, count: number): void {
    const { maxTopk: topk, rowBytes } = this.#context.config;
    const cell = first * topk * 4;
    this.#device.kernels.scatterRows(
      x.address + first * rowBytes,
      rowBytes,
      count,
      topk,
      rowTable.address + cell,
      rankTable.address + cell,
      this.#memory.bases('rows'),
    );
  }

  #sendBeside(input: LayerInput, { rowTable, rankTable }: PlaceTables): void {
    const memory = this.#memory;
    const { kernels } = this.#device;
    const { maxTopk: topk } = this.#context.config;
    const { numTokens, topkWeights } = input;
    const [table, ranks] = [rowTable.address, rankTable.address];
    if (input.fullScatterIndices) {
      kernels.scatterTokenIndex(numTokens, topk, table, ranks, memory.bases('sourceToken'));
    }
    if (topkWeights) {
      const bytes = dtypes[topkWeights.dtype].bytes;
      kernels.scatterWeight(topkWeights.address, bytes, numTokens, topk, table, ranks, memory.bases('weights'));
    }
    kernels.scatterDuplicates(numTokens, topk, table, ranks, memory.bases('firstRow'), memory.bases('duplicates'));
  }

  async #requireAllWritten(plan: ExpertPlan, options: CallWait): Promise<void> {
    const { exchange } = this.#memory;
    exchange.beginCall();
    exchange.publishStatus(this.#sourceTokens(plan).includes(-1) ? 1 : 0);
    await this.#meet({ kind: 'layer dispatch', detail: 1 }, 'middle', { ...options, withCounts: false });
    throwIfRepeated(exchange.statuses(), this.#context.group.ranks);
  }

  #sourceTokens({ recvRows }: ExpertPlan): Int32Array {
    return this.#memory.view('i32', 'sourceToken', [recvRows[this.#context.config.rank]!]).view();
  }

  #receive(
    input: LayerInput,
    { plan, tables, numTokens }: { plan: ExpertPlan; tables: PlaceTables; numTokens: Int32Array },
  ): LayerReceived {
    const { group } = this.#context;
    const { hidden, maxTopk: topk, numExpertsPerRank, tokenDtype, weightDtype, offsetDtype } = this.#context.config;
    const rows = input.rowBound || plan.recvRows[group.rank]!;
    const firstExpert = group.rank * numExpertsPerRank;
    tables.numInputTokens.view().set(numTokens);
    const perExpert = plan.blockRows.subarray(firstExpert, firstExpert + numExpertsPerRank);
    const firstRows = this.#memory.view('i32', 'firstRow', [rows]);
    const duplicates = this.#memory.view('i32', 'duplicates', [rows, topk]);
    const weights = input.topkWeights && this.#memory.view(weightDtype, 'weights', [rows]);
    const { recvCounts } = tables;
    if (recvCounts !== undefined) {
      recvCounts.view().set(perExpert);
      markTail({ firstRows, duplicates, weights }, plan.recvRows[group.rank]!);
    }
    const handle = new EPAllToAllLayoutDesc(
      {
        ...tables,
        owner: this.#context,
        sequence: this.#dispatches,
        input,
        numRecvTokens: rows,
        numRecvTokensPerExpert: recvCounts ? [] : [...perExpert],
        firstRows,
        duplicates,
        repeated: undefined,
        plan: undefined,
        hostLayout: this.#memory.network?.describe(input, tables),
      },
      {
        localCombine: this.#localCombine,
        offsetDtype,
        copy: (table) => copyTable(this.#device, table),
        widen: (table) => widenTable(this.#device, table),
      },
    );
    return {
      recvX: this.#memory.view(tokenDtype, 'rows', [rows, hidden]),
      recvTopkWeights: weights,
      handle,
    };
  }
}

interface SendPlan {
  readonly plan: ExpertPlan;
  readonly tables: PlaceTables;
  readonly options: CallWait;
  readonly counts: ExchangeResult;
}

// Copies of tables in memory of CPU ranks.

/** Fails with WL_MEMORY. */
function copyTable<D extends 'i32' | 'u8'>(device: CpuDevice, table: Tensor<D>): Tensor<D> {
  const copy = device.empty(table.dtype, table.shape);
  copy.view().set(table.view());
  return copy;
}

/** The same numbers as i64. Fails with WL_MEMORY. */
function widenTable(device: CpuDevice, table: Tensor<'i32'>): Tensor<'i64'> {
  const wide = device.empty('i64', table.shape);
  wide.view().set(BigInt64Array.from(table.view(), BigInt));
  return wide;
}
