// EPAll2AllLayer: dispatch gives one row per (token, expert), grouped by expert; combine sums a token's rows.
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { WaitOptions } from '../../world/store.ts';
import type { World } from '../../world/world.ts';
import { agreeOnConfig, requireOneHost } from '../agree.ts';
import { isWhole } from '../buffer-size.ts';
import { CallGuard } from '../call-guard.ts';
import { callWord } from '../calls.ts';
import { computeLayout, emptyLayout, type LayoutShape } from '../dispatch-layout.ts';
import { overlaps } from '../tensor-check.ts';
import { DispatchCombineContext } from './dispatch-combine-context.ts';
import { EPConfig } from './ep-config.ts';
import { type ExpertPlan, planExperts } from './expert-plan.ts';
import {
  checkLayerCombine,
  checkLayerDispatch,
  type LayerCombineArguments,
  type LayerDispatchArguments,
  type LayerInput,
} from './layer-arguments.ts';
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
  readonly #shape: LayoutShape;
  readonly #layout: ReturnType<typeof emptyLayout>;
  readonly #nextRow: Tensor<'i32'>;
  readonly #scratch: Tensor<'i32'>;
  readonly #guard = new CallGuard('EPAll2AllLayer');

  /** Collective over the world, whose ranks must all be on one host; the same error on every rank if it cannot be. */
  static async create(world: World, device: CpuDevice, options: LayerOptions): Promise<EPAll2AllLayer> {
    const {
      maxTokens,
      hidden,
      topk,
      numTotExperts,
      weightDtype = 'f32',
      enableLocalCombine = false,
      capacity = 2,
    } = options;
    if (options.dtype !== undefined && options.dtype !== 'bf16')
      throw invalidArgument('dtype', options.dtype, '"bf16"');
    if (!isWhole(options.numSm ?? 20, 1)) throw invalidArgument('numSm', options.numSm, 'a whole number of at least 1');
    requireOneHost(world, 'EPAll2AllLayer');
    const config = new EPConfig({
      maxTokens,
      hidden,
      topk,
      numExperts: numTotExperts,
      rank: world.rank,
      worldSize: world.size,
      localWorldSize: world.localSize,
      weightDtype,
    });
    const shared = { maxTokens, hidden, topk, numTotExperts, weightDtype, enableLocalCombine, capacity };
    await agreeOnConfig(world, 'EPAll2AllLayer', shared, options);
    const context = await DispatchCombineContext.create(world, device, config, { ...options, capacity });
    return new EPAll2AllLayer(context, enableLocalCombine);
  }

  private constructor(context: DispatchCombineContext, enableLocalCombine: boolean) {
    const { device, config, world } = context;
    this.config = config;
    this.context = context;
    this.enableLocalCombine = enableLocalCombine;
    this.#shape = {
      ranks: world.size,
      experts: config.numExperts,
      dropped: config.numExperts,
      scratch: device.empty('i32', [config.numExperts]),
    };
    this.#layout = emptyLayout(device, config.maxTokens, this.#shape);
    this.#nextRow = device.empty('i32', [config.numExperts]);
    this.#scratch = device.empty('i32', [config.topk + 2]);
  }

  /**
   * Collective. Sends row t of `input` to every expert in expIndices[t]; -1 and numTotExperts both mean "dropped".
   * Bad arguments fail on this rank before anything moves; the others then wait for it.
   */
  async dispatch(args: LayerDispatchArguments): Promise<LayerDispatchResult> {
    return this.#guard.run('dispatch', async () => {
      const input = checkLayerDispatch(args, this.config, this.context.device);
      const { device, exchange, control, world } = this.context;
      this.#rejectInWindow('input', input.input);
      computeLayout(input.expIndices, this.#layout, this.#shape);
      const scattered = input.fullScatterIndices !== undefined;
      exchange.publish(
        {
          topk: this.config.topk,
          rowBytes: 2,
          scaleBytes: 0,
          indexBytes: 0,
          weightBytes: input.weight ? dtypes[input.weight.dtype].bytes : 0,
          scattered: scattered ? 1 : 0,
          numTokens: input.numTokens,
          rowBound: 0,
        },
        this.#layout.numTokensPerRank.view(),
        this.#layout.numTokensPerExpert.view(),
      );
      await control.barrier.wait(callWord('layer dispatch', 'opening'), args);
      const counts = exchange.collect();
      const plan = planExperts(counts, world.rank, this.config.numExperts);
      // Everyone knows everyone's rows, so all decide alike whether the output must grow.
      await this.context.reallocateDispatchOutputBuf(Math.max(...plan.recvRows), args);

      const tables = await this.#placeRows(input, plan, args);
      this.#sendRows(input, tables);
      await control.barrier.wait(callWord('layer dispatch', 'closing'), args);
      const rows = plan.recvRows[world.rank] as number;
      if (scattered) await this.#requireAllWritten(rows, args);
      const output = this.context.view('bf16', 'rows', [rows, this.config.hidden]);
      const weights = input.weight && this.context.view(this.config.weightDtype, 'weights', [rows]);
      const numInputTokensPerRank = device.empty('i32', [world.size]);
      numInputTokensPerRank.view().set(counts.numTokens);
      const perRank = this.config.numExpertsPerRank;
      const layoutDesc = new EPAllToAllLayoutDesc({
        owner: this,
        numDispatchTokenCurRank: input.numTokens,
        numInputTokensPerRank,
        topkIndicesTensor: input.expIndices,
        tokenDstScatterIdx: tables.rowTable,
        tokenDstRank: tables.rankTable,
        skippedTokenMappingIndices: this.#copyOwn('firstRow', [rows]),
        skippedTokenTopkMappingIndices: this.#copyOwn('duplicates', [rows, this.config.topk]),
        numRecvTokens: rows,
        numRecvTokensPerExpert: [...plan.blockRows.subarray(world.rank * perRank, (world.rank + 1) * perRank)],
      });
      return { output, weights, layoutDesc };
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [recv, H] in the window. It is the
   * memory of dispatch's output, which the expert output thus replaces.
   */
  combineInput(layoutDesc: EPAllToAllLayoutDesc): Tensor<'bf16'> {
    this.#guard.requireOpen();
    return this.context.view('bf16', 'rows', [layoutDesc.numRecvTokens, this.config.hidden]);
  }

  /**
   * Collective. bf16 [T, H]: the unweighted sum of each token's rows, in top-k order in f32, rounded once (with local
   * combine: once per rank, then once more, ranks in the order of the token's choices). The dispatch output is consumed.
   */
  async combine(args: LayerCombineArguments): Promise<Tensor<'bf16'>> {
    return this.#guard.run('combine', async () => {
      const { device, control } = this.context;
      const { input, desc, out } = checkLayerCombine(args, this, device);
      if (out) this.#rejectInWindow('out', out);
      const { kernels } = device;
      const rowBytes = this.config.hidden * 2;
      const own = this.combineInput(desc);
      if (input.address !== own.address) kernels.copyBytes(own.address, input.address, input.bytes);
      if (this.enableLocalCombine) {
        const duplicates = (desc.skippedTokenTopkMappingIndices as Tensor<'i32'>).address;
        kernels.sumDuplicates(
          own.address,
          rowBytes,
          desc.numRecvTokens,
          this.config.topk,
          duplicates,
          this.#scratch.address,
        );
      }
      await control.barrier.wait(callWord('layer combine', 'opening'), args);
      const combined = out ?? device.empty('bf16', [desc.numDispatchTokenCurRank, this.config.hidden]);
      kernels.gatherSum(
        combined.address,
        rowBytes,
        desc.numDispatchTokenCurRank,
        this.config.topk,
        desc.tokenDstScatterIdx.address,
        desc.tokenDstRank.address,
        this.context.bases('rows'),
        this.enableLocalCombine ? 1 : 0,
        0,
        0,
        this.#scratch.address,
      );
      await control.barrier.wait(callWord('layer combine', 'closing'), args);
      return combined;
    });
  }

  /** Collective: returns when all ranks have called it. One host holds all ranks, so both forms are the same. */
  epBarrierAll(options: WaitOptions & { readonly intraNodeOnly?: boolean } = {}): Promise<void> {
    const call = callWord('barrier', 'opening', options.intraNodeOnly ? 1 : 0);
    return this.#guard.run('barrier', () => this.context.control.barrier.wait(call, options));
  }

  /** Releases the symmetric memory here. Not collective; idempotent. */
  async finalize(): Promise<void> {
    if (!this.#guard.close()) return;
    this.#layout[Symbol.dispose]();
    this.#shape.scratch.dispose();
    this.#nextRow.dispose();
    this.#scratch.dispose();
    await this.context.finalize();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.finalize();
  }

  /** Row and rank of every choice, from prefix sums or from the caller's indices. */
  async #placeRows(
    input: LayerInput,
    plan: ExpertPlan,
    options: WaitOptions,
  ): Promise<{ rowTable: Tensor<'i32'>; rankTable: Tensor<'i32'> }> {
    const { device, exchange, control } = this.context;
    const { topk, maxTokens, numExperts, numExpertsPerRank } = this.config;
    const { expIndices, numTokens, fullScatterIndices } = input;
    const rowTable = device.empty('i32', [1, maxTokens, topk]);
    const rankTable = device.empty('i32', [numTokens, topk]);
    rowTable.view().fill(-1, numTokens * topk);
    this.#nextRow.view().set(plan.firstRow);
    const indexBytes = dtypes[expIndices.dtype].bytes;
    const next = this.#nextRow.address;
    device.kernels.expandedRows(
      expIndices.address,
      indexBytes,
      numTokens,
      topk,
      numExperts,
      numExpertsPerRank,
      next,
      rowTable.address,
      rankTable.address,
    );
    if (fullScatterIndices) {
      exchange.publishStatus(
        applyScatterIndices({ topkIdx: expIndices, fullScatterIndices, rowTable, rankTable }, plan) + 1,
      );
      // An empty token index marks a row that nobody wrote.
      this.context
        .view('i32', 'sourceToken', [plan.recvRows[this.config.rank] as number])
        .view()
        .fill(-1);
      await control.barrier.wait(callWord('layer dispatch', 'middle'), options);
      throwIfOutOfBlock(exchange.statuses());
    }
    return { rowTable, rankTable };
  }

  #sendRows(input: LayerInput, { rowTable, rankTable }: { rowTable: Tensor<'i32'>; rankTable: Tensor<'i32'> }): void {
    const { context } = this;
    const { kernels } = context.device;
    const { topk, hidden } = this.config;
    const { numTokens, weight } = input;
    const [table, ranks] = [rowTable.address, rankTable.address];
    // Each row is written once per expert: on a CPU the copy at the far side would read and write the same memory again.
    kernels.scatterRows(input.input.address, hidden * 2, numTokens, topk, table, ranks, context.bases('rows'));
    kernels.scatterTokenIndex(0, numTokens, topk, table, ranks, context.bases('sourceToken'));
    if (weight) {
      const bytes = dtypes[weight.dtype].bytes;
      kernels.scatterWeight(weight.address, bytes, numTokens, topk, table, ranks, context.bases('weights'));
    }
    if (this.enableLocalCombine) {
      kernels.scatterDuplicates(numTokens, topk, table, ranks, context.bases('firstRow'), context.bases('duplicates'));
    }
  }

  async #requireAllWritten(rows: number, options: WaitOptions): Promise<void> {
    const { exchange, control } = this.context;
    const empty = this.context.view('i32', 'sourceToken', [rows]).view().includes(-1);
    exchange.publishStatus(empty ? 1 : 0);
    await control.barrier.wait(callWord('layer dispatch', 'middle', 1), options);
    throwIfRepeated(exchange.statuses());
  }

  #copyOwn(region: 'firstRow' | 'duplicates', shape: readonly number[]): Tensor<'i32'> | undefined {
    if (!this.enableLocalCombine) return undefined;
    const copy = this.context.device.empty('i32', shape);
    copy.view().set(this.context.view('i32', region, shape).view());
    return copy;
  }

  #rejectInWindow(name: string, tensor: Tensor): void {
    const { storage } = this.context.outputBuffers.dispatchOutputBuf;
    if (!overlaps(tensor, storage.address, storage.bytes)) return;
    throw invalidArgument(
      name,
      "a tensor in the layer's window",
      'a tensor of its own, for peers read and write the window',
    );
  }
}
