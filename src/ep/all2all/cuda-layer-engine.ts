// The GPU's way of a layer's call: kernels that meet their peers on the device; the host waits for counts, if at all.
import { layerPlan } from '../../abi/layer-arguments.ts';
import { type DType, dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/tensor-set.ts';
import type { WaitOptions } from '../../world/store.ts';
import { agreeOn } from '../agree.ts';
import { type Call, callWord } from '../calls.ts';
import { CudaCalls } from '../cuda-calls.ts';
import {
  bindLayerLaunches,
  bindOutput,
  type LayerLaunches,
  type LayerScratch,
  loadLayerLaunches,
  makeLayerScratch,
} from './cuda-layer-launches.ts';
import type { CudaLayerMemory } from './cuda-layer-memory.ts';
import { CudaLayerPlan } from './cuda-layer-plan.ts';
import type { DispatchCombineContext } from './dispatch-combine-context.ts';
import type { CheckedLayerCombine, LayerInput } from './layer-arguments.ts';
import type { LayerDispatchResult, LayerEngine, LayerEngineOptions } from './layer-engine.ts';
import { EPAllToAllLayoutDesc } from './layout-desc.ts';

/** What a dispatch writes for its descriptor. */
interface NewTables {
  /** i32 [1, maxTokens, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [ranks] */
  readonly numInputTokens: Tensor<'i32'>;
}

interface Parts {
  readonly memory: CudaLayerMemory;
  readonly launches: LayerLaunches;
  readonly scratch: LayerScratch & Disposable;
  readonly options: LayerEngineOptions;
}

/** Collective: compiles the kernels and takes their memory; every rank gets the same error if one cannot. */
export async function createCudaLayerEngine(
  context: DispatchCombineContext,
  options: LayerEngineOptions & WaitOptions,
): Promise<LayerEngine> {
  const { memory, config, world } = context;
  if (memory.kind !== 'cuda') throw new WeftlineError('WL_INTERNAL', 'This context lies in the memory of CPU ranks');
  const { device } = memory;
  const launches = await loadLayerLaunches(device, config, options).catch((error: unknown) => error as Error);
  const prepare = (): Parts => {
    if (launches instanceof Error) throw launches;
    const { set, made } = TensorSet.make(device, (tensors) => makeLayerScratch(tensors, config, launches.tileWords));
    const scratch = { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
    return { memory, launches, scratch, options };
  };
  const parts = await agreeOn(world, { what: 'EPAll2AllLayer kernels', config: {}, prepare, release }, options);
  return new CudaLayerEngine(context, parts);
}

function release({ scratch }: Parts): void {
  scratch[Symbol.dispose]();
}

class CudaLayerEngine implements LayerEngine {
  readonly #context: DispatchCombineContext;
  readonly #device: CudaDevice;
  readonly #memory: CudaLayerMemory;
  readonly #launches: LayerLaunches;
  readonly #scratch: LayerScratch & Disposable;
  readonly #options: LayerEngineOptions;
  readonly #hostPlan: CudaLayerPlan;
  readonly #calls: CudaCalls;
  #dispatches = 0;

  constructor(context: DispatchCombineContext, { memory, launches, scratch, options }: Parts) {
    const { config, world } = context;
    const { device } = memory;
    this.#context = context;
    this.#device = device;
    this.#memory = memory;
    this.#launches = launches;
    this.#scratch = scratch;
    this.#options = options;
    this.#hostPlan = new CudaLayerPlan(device, config);
    this.#calls = new CudaCalls(world, device);
    device.setBytes(scratch.counter, 0);
    bindLayerLaunches(launches, config, { memory, scratch, hostPlan: this.#hostPlan, traps: this.#calls.traps });
  }

  throwIfUnusable(): void {
    this.#calls.throwIfUnusable();
  }

  async dispatch(input: LayerInput, options: WaitOptions): Promise<LayerDispatchResult> {
    const { config, world } = this.#context;
    const timeoutNs = this.#calls.timeoutNs(options);
    bindOutput(this.#launches, config, this.#memory);
    const { set, made: tables } = TensorSet.make(this.#device, (tensors) => ({
      rowTable: tensors.empty('i32', [1, config.maxTokens, config.topk]),
      rankTable: tensors.empty('i32', [input.numTokens, config.topk]),
      numInputTokens: tensors.empty('i32', [world.size]),
    }));
    try {
      this.#launchPrepare(input, tables, timeoutNs);
      if (input.fullScatterIndices) await this.#placeThenSend(input, tables, options);
      else await this.#sendAtOnce(input, tables, options);
      return this.#receive(input, tables);
    } catch (error) {
      set[Symbol.dispose]();
      throw error;
    }
  }

  combine({ input, desc, out }: CheckedLayerCombine, options: WaitOptions): Promise<Tensor<'bf16'>> {
    const { config } = this.#context;
    const timeoutNs = this.#calls.timeoutNs(options);
    bindOutput(this.#launches, config, this.#memory);
    const combined = out ?? this.#device.empty('bf16', [desc.numDispatchTokenCurRank, config.hidden]);
    const own = this.#memory.regionAddress(config.rank, 'rows');
    if (input.address !== own) this.#copy(own, input.address, input.bytes);
    const { repeatedRows, skippedTokenTopkMappingIndices: duplicates } = desc;
    if (repeatedRows !== undefined && duplicates !== undefined && repeatedRows.elements > 0) {
      const { sumRepeated } = this.#launches;
      sumRepeated.arguments.set('repeated', repeatedRows.address);
      sumRepeated.arguments.set('duplicates', duplicates.address);
      sumRepeated.arguments.set('count', repeatedRows.elements);
      sumRepeated.arguments.set('recvRows', desc.numRecvTokens);
      sumRepeated.launch();
    }
    const { combine } = this.#launches;
    const call: Call = { kind: 'layer combine', handle: desc.sequence };
    combine.arguments.set('out', combined.address);
    combine.arguments.set('rowTable', desc.tokenDstScatterIdx.address);
    combine.arguments.set('rankTable', desc.tokenDstRank.address);
    combine.arguments.set('tokens', desc.numDispatchTokenCurRank);
    combine.arguments.set('timeoutNs', timeoutNs);
    combine.arguments.set('openingEpoch', this.#calls.nextEpoch());
    combine.arguments.set('openingCall', callWord(call, 'opening'));
    combine.arguments.set('closingEpoch', this.#calls.nextEpoch());
    combine.arguments.set('closingCall', callWord(call, 'closing'));
    combine.launch();
    return Promise.resolve(combined);
  }

  /** The host waits for the device, then for the other ranks: afterwards nothing of this layer runs anywhere. */
  async barrier(options: WaitOptions): Promise<void> {
    // Fails when the context was finalized.
    void this.#memory.size;
    await this.#device.stream.idle(options);
    this.throwIfUnusable();
    await this.#context.world.barrier('a2a', options);
  }

  async close(): Promise<void> {
    // Kernels that still run use this memory; a lost device runs none.
    await this.#device.stream.idle().catch(() => {});
    for (const part of [this.#scratch, this.#hostPlan, this.#calls]) part[Symbol.dispose]();
  }

  /** The usual case: rows are sent right behind the count exchange, which needs no host to be right. */
  async #sendAtOnce(input: LayerInput, tables: NewTables, options: WaitOptions): Promise<void> {
    const timeoutNs = this.#calls.timeoutNs(options);
    this.#launchDispatch(input, tables, timeoutNs);
    try {
      await this.#awaitCounts(input, options);
      if (!this.#hostPlan.mustGrow) return;
      await this.#grow(options);
    } catch (error) {
      // All ranks fail alike, so none of them came to the closing barrier.
      this.#calls.takeBackEpoch();
      throw error;
    }
    // The kernels left at once; the epoch of their closing barrier is still to be used.
    this.#calls.takeBackEpoch();
    this.#launchDispatch(input, tables, timeoutNs);
  }

  async #placeThenSend(input: LayerInput, tables: NewTables, options: WaitOptions): Promise<void> {
    const timeoutNs = this.#calls.timeoutNs(options);
    await this.#awaitCounts(input, options);
    if (this.#hostPlan.mustGrow) await this.#grow(options);
    this.#launchPlace(input, tables, timeoutNs);
    const isPlaced = (): boolean => this.#hostPlan.isPlaced(this.#dispatches);
    await this.#calls.waitFor('The check of fullScatterIndices', isPlaced, options);
    await this.#hostPlan.throwIfFailed(input);
    this.#launchDispatch(input, tables, timeoutNs);
  }

  async #awaitCounts(input: LayerInput, options: WaitOptions): Promise<void> {
    const isCounted = (): boolean => this.#hostPlan.isCounted(this.#dispatches);
    await this.#calls.waitFor('The count exchange of a layer dispatch', isCounted, options);
    await this.#hostPlan.throwIfFailed(input);
  }

  /** Everyone knows everyone's rows, so all decide alike to come here, and fail alike if there is no room. */
  async #grow(options: WaitOptions): Promise<void> {
    await this.#context.reallocateDispatchOutputBuf(Math.max(...this.#hostPlan.recvRows), options);
    bindOutput(this.#launches, this.#context.config, this.#memory);
    // What made the kernels leave is over.
    const status = this.#scratch.plan.address + layerPlan.offset.status;
    this.#device.context.call('cuMemsetD8Async', status, 0, 4, this.#device.stream.handle);
  }

  #launchPrepare(input: LayerInput, tables: NewTables, timeoutNs: number): void {
    const { prepare } = this.#launches;
    const set = prepare.arguments;
    this.#dispatches += 1;
    set.set('topk', input.expIndices.address);
    set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('numInputTokens', tables.numInputTokens.address);
    set.set('tokens', input.numTokens);
    set.set('timeoutNs', timeoutNs);
    set.set('epoch', this.#calls.nextEpoch());
    set.set('call', callWord({ kind: 'layer dispatch' }, 'opening'));
    set.set('sequence', this.#dispatches);
    set.set('weightBytes', input.weight ? dtypes[input.weight.dtype].bytes : 0);
    set.set('scattered', input.fullScatterIndices ? 1 : 0);
    prepare.launch();
  }

  #launchPlace(input: LayerInput, tables: NewTables, timeoutNs: number): void {
    const { place } = this.#launches;
    const set = place.arguments;
    const places = input.fullScatterIndices as Tensor<'i32' | 'i64'>;
    set.set('topk', input.expIndices.address);
    set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
    set.set('places', places.address);
    set.set('placeBytes', dtypes[places.dtype].bytes);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('tokens', input.numTokens);
    set.set('timeoutNs', timeoutNs);
    set.set('sequence', this.#dispatches);
    for (let barrier = 0; barrier < 3; barrier++) {
      set.set('epochs', this.#calls.nextEpoch(), barrier);
      set.set('calls', callWord({ kind: 'layer dispatch', detail: barrier }, 'middle'), barrier);
    }
    place.launch();
  }

  #launchDispatch(input: LayerInput, tables: NewTables, timeoutNs: number): void {
    const { dispatch } = this.#launches;
    const set = dispatch.arguments;
    set.set('sequence', this.#dispatches);
    set.set('x', input.input.address);
    set.set('topk', input.expIndices.address);
    set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
    set.set('weights', input.weight?.address ?? 0);
    set.set('weightBytes', input.weight ? dtypes[input.weight.dtype].bytes : 0);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('tokens', input.numTokens);
    set.set('placed', input.fullScatterIndices ? 1 : 0);
    set.set('timeoutNs', timeoutNs);
    set.set('closingEpoch', this.#calls.nextEpoch());
    set.set('closingCall', callWord({ kind: 'layer dispatch' }, 'closing'));
    dispatch.launch();
  }

  #receive(input: LayerInput, { rowTable, rankTable, numInputTokens }: NewTables): LayerDispatchResult {
    const { config } = this.#context;
    const rows = this.#hostPlan.recvRows[config.rank] as number;
    const local = this.#options.enableLocalCombine;
    const keep = (
      region: 'firstRow' | 'duplicates' | 'repeated',
      shape: readonly number[],
    ): Tensor<'i32'> | undefined => (local ? this.#copyOwn(region, shape) : undefined);
    const layoutDesc = new EPAllToAllLayoutDesc({
      owner: this.#context,
      sequence: this.#dispatches,
      numDispatchTokenCurRank: input.numTokens,
      numInputTokensPerRank: numInputTokens,
      topkIndicesTensor: input.expIndices,
      tokenDstScatterIdx: rowTable,
      tokenDstRank: rankTable,
      skippedTokenMappingIndices: keep('firstRow', [rows]),
      skippedTokenTopkMappingIndices: keep('duplicates', [rows, config.topk]),
      repeatedRows: keep('repeated', [this.#hostPlan.repeated]),
      numRecvTokens: rows,
      numRecvTokensPerExpert: this.#hostPlan.perExpert,
    });
    return {
      output: this.#view('bf16', 'rows', [rows, config.hidden]),
      weights: input.weight && this.#view(config.weightDtype, 'weights', [rows]),
      layoutDesc,
    };
  }

  #view<D extends DType>(dtype: D, region: 'rows' | 'weights', shape: readonly number[]): Tensor<D> {
    return this.#memory.view(dtype, region, shape);
  }

  /** The window's table is overwritten by the next dispatch; the descriptor keeps its own. */
  #copyOwn(region: 'firstRow' | 'duplicates' | 'repeated', shape: readonly number[]): Tensor<'i32'> {
    const copy = this.#device.empty('i32', shape);
    this.#copy(copy.address, this.#memory.regionAddress(this.#context.config.rank, region), copy.bytes);
    return copy;
  }

  #copy(to: number, from: number, bytes: number): void {
    if (bytes === 0) return;
    const { context, stream } = this.#device;
    context.workCount += 1;
    context.call('cuMemcpyDtoDAsync', to, from, bytes, stream.handle);
  }
}
