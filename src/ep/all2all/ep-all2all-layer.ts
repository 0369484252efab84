// EPAll2AllLayer: dispatch gives one row per (token, expert), grouped by expert; combine sums a token's rows.
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Tensor } from '../../device/tensor.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { World } from '../../world/world.ts';
import { agreeOn, requireOneHost } from '../agree.ts';
import { isWhole } from '../buffer-size.ts';
import { CallGuard } from '../call-guard.ts';
import { type Call, callWord } from '../calls.ts';
import { computeLayout } from '../dispatch-layout.ts';
import type { ExchangeHeader } from '../exchange.ts';
import { overlaps } from '../tensor-check.ts';
import { DispatchCombineContext } from './dispatch-combine-context.ts';
import { EPConfig } from './ep-config.ts';
import { type ExpertPlan, planExperts } from './expert-plan.ts';
import {
  checkDescriptor,
  checkLayerCombine,
  checkLayerDispatch,
  type LayerCombineArguments,
  type LayerDispatchArguments,
  type LayerInput,
} from './layer-arguments.ts';
import { type LayerTables, makeLayerTables } from './layer-tables.ts';
import { EPAllToAllLayoutDesc } from './layout-desc.ts';
import { applyScatterIndices, throwIfOutOfBlock, throwIfRepeated } from './scatter-indices.ts';

export interface LayerOptions extends WaitOptions {
  readonly maxTokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly numTotExperts: number;
  /** Of the tokens; only 'bf16'. */
  readonly dtype?: 'bf16';
  /** Of the routing weights; 'f32' by default. */
  readonly weightDtype?: 'f32' | 'bf16';
  /** Sum a token's rows on each rank first, so that combine moves one row per (token, rank); one more rounding to bf16. */
  readonly enableLocalCombine?: boolean;
  /** Multiprocessors for the kernels of a GPU; a CPU rank works on its one thread whatever it says. */
  readonly numSm?: number;
  /** Run kernels compiled ahead of time; those of a CPU rank always are. */
  readonly useAot?: boolean;
  /** Rows of the output buffer as a multiple of maxTokens * topk; 2 by default. It grows on demand. */
  readonly capacity?: number;
}

export interface LayerDispatchResult {
  /** bf16 [recv, H] in this rank's window, by local expert, then source rank, then token; valid until combine or the next dispatch. */
  readonly output: Tensor<'bf16'>;
  /** [recv], of weightDtype, in the window like `output`; absent when no weights were passed. */
  readonly weights: Tensor<'f32' | 'bf16'> | undefined;
  readonly layoutDesc: EPAllToAllLayoutDesc;
}

export class EPAll2AllLayer implements AsyncDisposable {
  readonly config: EPConfig;
  readonly context: DispatchCombineContext;
  readonly enableLocalCombine: boolean;
  readonly #tables: LayerTables;
  readonly #guard = new CallGuard('EPAll2AllLayer');
  /** Dispatches so far; alike on all ranks, because they are collective. */
  #dispatches = 0;

  /** Collective over the world, whose ranks must all be on one host; the same error on every rank if it cannot be. */
  static async create(world: World, device: CpuDevice, options: LayerOptions): Promise<EPAll2AllLayer> {
    requireOneHost(world, 'EPAll2AllLayer');
    const { maxTokens, hidden, topk, numTotExperts, weightDtype = 'f32' } = options;
    const { enableLocalCombine = false, capacity = 2 } = options;
    const prepare = (): { readonly epConfig: EPConfig; readonly tables: LayerTables } => {
      const epConfig = makeConfig(options, world);
      return { epConfig, tables: makeLayerTables(device, epConfig) };
    };
    const config = { maxTokens, hidden, topk, numTotExperts, weightDtype, enableLocalCombine, capacity };
    const release = ({ tables }: ReturnType<typeof prepare>): void => tables[Symbol.dispose]();
    const agreement = { what: 'EPAll2AllLayer', config, prepare, release };
    const { epConfig, tables } = await agreeOn(world, agreement, options);
    try {
      const context = await DispatchCombineContext.create(world, device, epConfig, { ...options, capacity });
      return new EPAll2AllLayer(context, tables, enableLocalCombine);
    } catch (error) {
      tables[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(context: DispatchCombineContext, tables: LayerTables, enableLocalCombine: boolean) {
    this.config = context.config;
    this.context = context;
    this.enableLocalCombine = enableLocalCombine;
    this.#tables = tables;
  }

  /**
   * Collective. Sends row t of `input` to every expert in expIndices[t]; -1 and numTotExperts both mean "dropped".
   * Bad arguments fail on this rank before anything moves; the others then wait for it.
   */
  async dispatch(args: LayerDispatchArguments): Promise<LayerDispatchResult> {
    return this.#guard.run('dispatch', async () => {
      const { device, exchange, world } = this.context;
      const { barrier } = this.context.control;
      barrier.throwIfUnusable();
      const input = checkLayerDispatch(args, this.config, device);
      this.#rejectInWindow(input);
      const { layout, shape } = this.#tables;
      computeLayout(input.expIndices, layout, shape);
      exchange.publish(this.#exchangeHeader(input), layout.numTokensPerRank.view(), layout.numTokensPerExpert.view());
      await barrier.wait(callWord({ kind: 'layer dispatch' }, 'opening'), args);
      this.#dispatches += 1;
      const counts = exchange.collect();
      const plan = planExperts(counts, world.rank, this.config.numExperts);
      // Everyone knows everyone's rows, so all decide alike whether the output must grow, and fail alike if it cannot.
      await this.context.reallocateDispatchOutputBuf(Math.max(...plan.recvRows), args);
      const tables = await barrier.orAbort(() => this.#placeRows(input, plan));
      if (input.fullScatterIndices)
        await this.#applyScatter(input.fullScatterIndices, input, { plan, tables, options: args });
      await barrier.orAbort(() => this.#sendRows(input, tables));
      await barrier.wait(callWord({ kind: 'layer dispatch' }, 'closing'), args);
      if (input.fullScatterIndices) await this.#requireAllWritten(plan, args);
      return barrier.orAbort(() => this.#receive(input, { plan, tables, numTokens: counts.numTokens }));
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [recv, H] in the window. It is the
   * memory of dispatch's output, which the expert output thus replaces.
   */
  combineInput(layoutDesc: EPAllToAllLayoutDesc): Tensor<'bf16'> {
    this.#guard.requireOpen();
    const { numRecvTokens } = checkDescriptor(layoutDesc, this);
    return this.context.view('bf16', 'rows', [numRecvTokens, this.config.hidden]);
  }

  /**
   * Collective. bf16 [T, H]: the unweighted sum of each token's rows, in top-k order in f32, rounded once (with local
   * combine: once per rank, then once more, ranks in the order of the token's choices). The dispatch output is consumed.
   */
  async combine(args: LayerCombineArguments): Promise<Tensor<'bf16'>> {
    return this.#guard.run('combine', async () => {
      const { device, control } = this.context;
      control.barrier.throwIfUnusable();
      const { input, desc, out } = checkLayerCombine(args, this, device);
      if (out) this.#rejectInWindow({ out });
      const { kernels } = device;
      const { topk, hidden } = this.config;
      const combined = out ?? device.empty('bf16', [desc.numDispatchTokenCurRank, hidden]);
      const own = this.combineInput(desc);
      const sources = this.#tables.sources.address;
      if (input.address !== own.address) kernels.copyBytes(own.address, input.address, input.bytes);
      const duplicates = desc.skippedTokenTopkMappingIndices?.address;
      if (duplicates !== undefined) {
        kernels.sumDuplicates(own.address, hidden * 2, desc.numRecvTokens, topk, duplicates, sources);
      }
      const call: Call = { kind: 'layer combine', handle: desc.sequence };
      await control.barrier.wait(callWord(call, 'opening'), args);
      kernels.gatherSum(
        combined.address,
        hidden * 2,
        desc.numDispatchTokenCurRank,
        topk,
        desc.tokenDstScatterIdx.address,
        desc.tokenDstRank.address,
        this.context.bases('rows'),
        this.enableLocalCombine ? 1 : 0,
        0,
        0,
        sources,
      );
      await control.barrier.wait(callWord(call, 'closing'), args);
      return combined;
    });
  }

  /** Collective: returns when all ranks have called it. One host holds all ranks, so both forms are the same. */
  epBarrierAll(options: WaitOptions & { readonly intraNodeOnly?: boolean } = {}): Promise<void> {
    const call = callWord({ kind: 'barrier', detail: options.intraNodeOnly ? 1 : 0 }, 'opening');
    return this.#guard.run('barrier', () => this.context.control.barrier.wait(call, options));
  }

  /** Releases the symmetric memory here. Not collective; idempotent. */
  async finalize(): Promise<void> {
    if (!this.#guard.close()) return;
    this.#tables[Symbol.dispose]();
    await this.context.finalize();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.finalize();
  }

  #exchangeHeader(input: LayerInput): ExchangeHeader {
    return {
      topk: this.config.topk,
      rowBytes: 2,
      scaleBytes: 0,
      indexBytes: 0,
      weightBytes: input.weight ? dtypes[input.weight.dtype].bytes : 0,
      scattered: input.fullScatterIndices ? 1 : 0,
      numTokens: input.numTokens,
      rowBound: 0,
    };
  }

  /** Row and rank of every choice, from prefix sums. */
  #placeRows({ expIndices, numTokens }: LayerInput, plan: ExpertPlan): PlaceTables {
    const { device } = this.context;
    const { topk, maxTokens, numExperts, numExpertsPerRank } = this.config;
    const rowTable = device.empty('i32', [1, maxTokens, topk]);
    const rankTable = device.empty('i32', [numTokens, topk]);
    rowTable.view().fill(-1, numTokens * topk);
    this.#tables.nextRow.view().set(plan.firstRow);
    device.kernels.expandedRows(
      expIndices.address,
      dtypes[expIndices.dtype].bytes,
      numTokens,
      topk,
      numExperts,
      numExpertsPerRank,
      this.#tables.nextRow.address,
      rowTable.address,
      rankTable.address,
    );
    return { rowTable, rankTable };
  }

  /** Rows from the caller's indices instead; every rank gets the same error when one of them names a wrong row. */
  async #applyScatter(
    fullScatterIndices: Tensor<'i32' | 'i64'>,
    { expIndices }: LayerInput,
    { plan, tables, options }: { plan: ExpertPlan; tables: PlaceTables; options: WaitOptions },
  ): Promise<void> {
    const { exchange, control } = this.context;
    const bad = applyScatterIndices({ topkIdx: expIndices, fullScatterIndices, ...tables }, plan);
    exchange.publishStatus(bad + 1);
    // An empty token index marks a row that nobody wrote.
    this.#sourceTokens(plan).fill(-1);
    await control.barrier.wait(callWord({ kind: 'layer dispatch' }, 'middle'), options);
    throwIfOutOfBlock(exchange.statuses());
  }

  #sendRows(input: LayerInput, { rowTable, rankTable }: PlaceTables): void {
    const { context } = this;
    const { kernels } = context.device;
    const { topk, hidden } = this.config;
    const { numTokens, weight } = input;
    const [table, ranks] = [rowTable.address, rankTable.address];
    // Each row is written once per expert: on a CPU the copy at the far side would read and write the same memory again.
    kernels.scatterRows(input.input.address, hidden * 2, numTokens, topk, table, ranks, context.bases('rows'));
    if (input.fullScatterIndices) {
      kernels.scatterTokenIndex(numTokens, topk, table, ranks, context.bases('sourceToken'));
    }
    if (weight) {
      const bytes = dtypes[weight.dtype].bytes;
      kernels.scatterWeight(weight.address, bytes, numTokens, topk, table, ranks, context.bases('weights'));
    }
    if (this.enableLocalCombine) {
      kernels.scatterDuplicates(numTokens, topk, table, ranks, context.bases('firstRow'), context.bases('duplicates'));
    }
  }

  async #requireAllWritten(plan: ExpertPlan, options: WaitOptions): Promise<void> {
    const { exchange, control } = this.context;
    exchange.publishStatus(this.#sourceTokens(plan).includes(-1) ? 1 : 0);
    await control.barrier.wait(callWord({ kind: 'layer dispatch', detail: 1 }, 'middle'), options);
    throwIfRepeated(exchange.statuses());
  }

  #sourceTokens({ recvRows }: ExpertPlan): Int32Array {
    return this.context.view('i32', 'sourceToken', [recvRows[this.config.rank] as number]).view();
  }

  #receive(
    input: LayerInput,
    { plan, tables, numTokens }: { plan: ExpertPlan; tables: PlaceTables; numTokens: Int32Array },
  ): LayerDispatchResult {
    const { device, world } = this.context;
    const { hidden, topk, numExpertsPerRank, weightDtype } = this.config;
    const rows = plan.recvRows[world.rank] as number;
    const numInputTokensPerRank = device.empty('i32', [world.size]);
    numInputTokensPerRank.view().set(numTokens);
    const firstExpert = world.rank * numExpertsPerRank;
    const layoutDesc = new EPAllToAllLayoutDesc({
      owner: this,
      sequence: this.#dispatches,
      numDispatchTokenCurRank: input.numTokens,
      numInputTokensPerRank,
      topkIndicesTensor: input.expIndices,
      tokenDstScatterIdx: tables.rowTable,
      tokenDstRank: tables.rankTable,
      skippedTokenMappingIndices: this.#copyOwn('firstRow', [rows]),
      skippedTokenTopkMappingIndices: this.#copyOwn('duplicates', [rows, topk]),
      numRecvTokens: rows,
      numRecvTokensPerExpert: [...plan.blockRows.subarray(firstExpert, firstExpert + numExpertsPerRank)],
    });
    return {
      output: this.context.view('bf16', 'rows', [rows, hidden]),
      weights: input.weight && this.context.view(weightDtype, 'weights', [rows]),
      layoutDesc,
    };
  }

  #copyOwn(region: 'firstRow' | 'duplicates', shape: readonly number[]): Tensor<'i32'> | undefined {
    if (!this.enableLocalCombine) return undefined;
    const copy = this.context.device.empty('i32', shape);
    copy.view().set(this.context.view('i32', region, shape).view());
    return copy;
  }

  #rejectInWindow(tensors: object): void {
    const { storage } = this.context.outputBuffers.dispatchOutputBuf;
    for (const [name, tensor] of Object.entries(tensors) as [string, unknown][]) {
      if (!(tensor instanceof Tensor) || !overlaps(tensor, storage.address, storage.bytes)) continue;
      const allowed = 'a tensor of its own, for peers read and write the window';
      throw invalidArgument(name, "a tensor in the layer's window", allowed);
    }
  }
}

interface PlaceTables {
  /** i32 [1, maxTokens, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
}

function makeConfig(options: LayerOptions, world: World): EPConfig {
  const { maxTokens, hidden, topk, numTotExperts, dtype = 'bf16', weightDtype = 'f32', numSm = 20 } = options;
  if (dtype !== 'bf16') throw invalidArgument('dtype', dtype, '"bf16"');
  if (!isWhole(numSm, 1)) throw invalidArgument('numSm', numSm, 'a whole number of at least 1');
  if (!isWhole(numTotExperts, 1) || numTotExperts % world.size !== 0) {
    throw invalidArgument('numTotExperts', numTotExperts, `a positive multiple of the ${world.size} ranks`);
  }
  return new EPConfig({
    maxTokens,
    hidden,
    topk,
    numExperts: numTotExperts,
    rank: world.rank,
    worldSize: world.size,
    localWorldSize: world.localSize,
    weightDtype,
  });
}
