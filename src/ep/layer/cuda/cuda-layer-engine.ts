// The GPU's way of a layer's call: kernels that meet their peers on the device; the host waits for counts, if at all.
import { layerPlan, layerRoute, type layerWidenArguments } from '../../../abi/ep-layer.ts';
import { type CallWait, remaining } from '../../../core/deadline.ts';
import { type DType, dtypes } from '../../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { CudaHostNetwork } from '../../across-hosts/cuda-host-network.ts';
import type { CallHooks } from '../../buffer/cuda/cuda-engine.ts';
import type { EpCallOptions } from '../../buffer/call-arguments.ts';
import {
  bindLayerLaunches,
  bindOutput,
  CudaLayerPlan,
  type LayerLaunches,
  type LayerScratch,
  loadLayerLaunches,
  makeLayerScratch,
} from './cuda-layer-launches.ts';
import type { CudaLayerMemory } from './cuda-layer-memory.ts';
import type { DispatchCombineContext } from '../dispatch-combine-context.ts';
import type { TokenDType } from '../ep-config.ts';
import { dispatchSplits } from '../expert-plan.ts';
import type { CheckedLayerCombine, LayerInput } from '../layer-arguments.ts';
import {
  type DispatchStages,
  type LayerCombineResult,
  LayerDispatchResult,
  type LayerEngine,
  type LayerEngineOptions,
  type LayerReceived,
} from '../layer-engine.ts';
import { type CrossingTables, EPAllToAllLayoutDesc } from '../layout-desc.ts';
import { isWideSum, layerPinnedSize } from '../output-size.ts';
import { agreeOnKernels } from '../../../group/agree.ts';
import { type Call, callWord } from '../../../group/calls.ts';
import { CudaCallOrder, CudaCalls, type RecordingOf } from '../../../group/cuda-calls.ts';
import { overlaps } from '../../../group/tensor-check.ts';
import { isSharedByAll } from '../../../windows/symmetric-window.ts';

/** What the ranks have made together before the engine. */
interface LayerEngineParts {
  readonly memory: CudaLayerMemory;
  readonly launches: LayerLaunches;
  readonly scratch: LayerScratch & Disposable;
  readonly options: LayerEngineOptions;
  readonly calls: CudaCalls;
  /** `network`: of a group on several hosts. */
  readonly hooks: CallHooks;
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
  readonly #order: CudaCallOrder;
  readonly #network: CudaHostNetwork | undefined;
  readonly #recording: RecordingOf;
  #requireIdle: (what: string) => void = () => {};
  /** Number of the last dispatch. */
  #dispatches = 0;

  constructor(context: DispatchCombineContext, parts: LayerEngineParts) {
    const { memory, launches, scratch, options, calls, hooks } = parts;
    const { config, group } = context;
    const { device } = memory;
    this.#context = context;
    this.#device = device;
    this.#memory = memory;
    this.#launches = launches;
    this.#scratch = scratch;
    this.#options = options;
    this.#hostPlan = new CudaLayerPlan(device, config, group.ranks);
    this.#calls = calls;
    this.#network = hooks.network;
    this.#order = new CudaCallOrder(device);
    this.#recording = { order: this.#order, network: hooks.network, begin: () => this.#launchRule() };
    for (const tensor of [scratch.counter, scratch.plan]) device.setBytes(tensor, 0);
    const hostPlan = this.#hostPlan;
    hooks.findFailure = () => hostPlan.takeFailure();
    const { traps, lastEpochAddress } = calls;
    const bound = { memory, scratch, hostPlan, traps, lastEpochAddress, network: hooks.network?.address ?? 0 };
    bindLayerLaunches(launches, context, bound);
  }

  guardLaunches(requireIdle: (what: string) => void): void {
    this.#requireIdle = requireIdle;
  }

  throwIfUnusable(): void {
    this.#calls.throwIfUnusable();
  }

  async dispatch(input: LayerInput, options: EpCallOptions): Promise<LayerDispatchResult<TokenDType>> {
    if (input.rowBound === 0) this.#requireHost();
    const sending = this.#begin(input, options);
    return this.#orEnd(sending, async () => {
      this.#launchPrepare(sending);
      // How it went shows later.
      if (input.rowBound !== 0) this.#launchDispatch(sending, options);
      else if (input.fullScatterIndices) {
        await this.#awaitCounts(sending, options);
        if (this.#hostPlan.mustGrow) await this.#grow(sending, options);
        await this.#placeThenSend(sending, options);
      } else {
        await this.#sendAtOnce(sending, options);
      }
      return this.#finish(sending);
    });
  }

  async prepare(input: LayerInput, options: EpCallOptions): Promise<DispatchStages> {
    this.#requireHost();
    const sending = this.#begin(input, options);
    await this.#orEnd(sending, () => {
      this.#launchPrepare(sending);
      return this.#awaitCounts(sending, options);
    });
    return {
      recvRows: this.#hostPlan.recvRows,
      perExpert: this.#hostPlan.perExpert,
      splits: async () => dispatchSplits(this.#context.config, await this.#memory.readCounts(this.#dispatches)),
      sendReqs: () => undefined,
      makeRoom: (wait) =>
        this.#orEnd(sending, async () => {
          if (this.#hostPlan.mustGrow) await this.#grow(sending, wait);
        }),
      send: (wait) =>
        this.#orEnd(sending, async () => {
          if (input.fullScatterIndices) await this.#placeThenSend(sending, wait);
          else this.#launchDispatch(sending, wait);
        }),
      finish: () => this.#orEnd(sending, () => Promise.resolve(this.#finish(sending))),
    };
  }

  combine({ x, desc, out }: CheckedLayerCombine, options: EpCallOptions): Promise<LayerCombineResult<TokenDType>> {
    const { config } = this.#context;
    const { repeatedRows, duplicates, plan, rowTable, rankTable, sequence } = desc.tables;
    const timeoutNs = this.#calls.timeoutNs(options);
    bindOutput(this.#launches, this.#memory);
    const combinedX = out ?? this.#device.empty(config.tokenDtype, [desc.numDispatchTokenCurRank, config.hidden]);
    const own = this.#memory.regionAddress('expertRows');
    if (x.address !== own && overlaps(x, own, x.bytes)) {
      const allowed = 'combineInput of the same descriptor, or a tensor that shares no bytes with it';
      throw invalidArgument('x', 'a tensor that overlaps where peers read it', allowed);
    }
    traceBegin('layer.launch');
    this.#calls.record(this.#recording);
    const stream = this.#order.begin(options);
    if (x.address !== own) copyBytes(this.#device, { to: own, from: x.address, bytes: x.bytes }, stream);
    if (repeatedRows !== undefined && duplicates !== undefined && repeatedRows.elements > 0) {
      const { sumRepeated } = this.#launches;
      sumRepeated.arguments.set('repeated', repeatedRows.address);
      sumRepeated.arguments.set('duplicates', duplicates.address);
      sumRepeated.arguments.set('plan', plan?.address ?? 0);
      sumRepeated.arguments.set('count', repeatedRows.elements);
      sumRepeated.arguments.set('recvRows', desc.numRecvTokens);
      sumRepeated.launch(stream);
    }
    const { combine } = this.#launches;
    const call: Call = { kind: 'layer combine', handle: sequence };
    combine.arguments.set('out', combinedX.address);
    combine.arguments.set('rowTable', rowTable.address);
    combine.arguments.set('rankTable', rankTable.address);
    combine.arguments.set('tokens', desc.numDispatchTokenCurRank);
    combine.arguments.set('timeoutNs', timeoutNs);
    combine.arguments.set('openingEpoch', this.#calls.nextEpochs(2));
    combine.arguments.set('openingCall', callWord(call, 'opening'));
    combine.arguments.set('closingCall', callWord(call, 'closing'));
    if (desc.tables.crossing) setCrossing(combine.arguments, desc.tables.crossing);
    this.#network?.wake();
    combine.launch(stream);
    traceEnd('layer.launch');
    return Promise.resolve({ combinedX, event: this.#order.end(options) });
  }

  /** The host waits for the device, then for the other ranks: afterwards nothing of this layer runs anywhere. */
  async barrier(wait: CallWait): Promise<void> {
    // Fails when the context was finalized.
    void this.#memory.size;
    await this.#order.idle(wait);
    this.throwIfUnusable();
    await this.#context.group.barrier('a2a', remaining(wait));
  }

  /** Its kernel is a call like others: those before it come first, and those after it wait for it. */
  barrierOnStream(stream: CudaStream, wait: CallWait & { readonly intraNodeOnly: boolean }): void {
    void this.#memory.size;
    const { barrier } = this.#launches;
    const call: Call = { kind: 'barrier', detail: wait.intraNodeOnly ? 1 : 0 };
    const timeoutNs = this.#calls.timeoutNs(wait);
    this.#calls.record(this.#recording);
    this.#order.beginOn(stream);
    barrier.arguments.set('timeoutNs', timeoutNs);
    barrier.arguments.set('epoch', this.#calls.nextEpochs(1));
    barrier.arguments.set('call', callWord(call, 'opening'));
    const acrossHosts = this.#network !== undefined && !wait.intraNodeOnly;
    barrier.arguments.set('acrossHosts', acrossHosts ? 1 : 0);
    if (acrossHosts) this.#network?.wake();
    barrier.launch(stream);
    this.#order.end({ asyncFinish: false });
  }

  async close(): Promise<void> {
    // Kernels that still run use this memory.
    await this.#order.drained();
    // What this rank has sent, peers may still wait for.
    await this.#network?.close();
    for (const part of [this.#order, this.#scratch, this.#hostPlan, this.#calls]) part[Symbol.dispose]();
  }

  #begin(input: LayerInput, options: EpCallOptions): Sending {
    const { config, group } = this.#context;
    bindOutput(this.#launches, this.#memory);
    const across = this.#network?.routes;
    if (across !== undefined && input.fullScatterIndices !== undefined) throw notPlaced();
    const { set, made: tables } = TensorSet.make(this.#device, (tensors) => ({
      rowTable: tensors.empty('i32', [1, config.maxTokensPerRank, config.maxTopk]),
      rankTable: tensors.empty('i32', [input.numTokens, config.maxTopk]),
      numInputTokens: tensors.empty('i32', [group.size]),
      recvCounts: input.rowBound === 0 ? undefined : tensors.empty('i32', [config.numExpertsPerRank]),
      crossing: across && {
        wayTable: tensors.empty('i32', [config.maxTokensPerRank, across.ways.length]),
        route: tensors.empty('u8', [layerRoute.size]),
        forwardRows: tensors.empty('i32', [across.served.length, config.maxTokensPerRank, config.maxTopk]),
        forwardRanks: tensors.empty('i32', [across.served.length, config.maxTokensPerRank, config.maxTopk]),
      },
    }));
    try {
      this.#calls.record(this.#recording);
      return { input, tables, set, stream: this.#order.begin(options), options };
    } catch (error) {
      set[Symbol.dispose]();
      throw error;
    }
  }

  /** When it fails the dispatch is over, on all ranks alike. */
  async #orEnd<T>({ input, set }: Sending, stage: () => Promise<T>): Promise<T> {
    const leave = input.rowBound === 0 ? this.#beginHostCall() : undefined;
    try {
      return await stage();
    } catch (error) {
      set[Symbol.dispose]();
      // What was launched keeps its place in the order of calls.
      this.#order.end({});
      throw error;
    } finally {
      leave?.();
    }
  }

  /** Kernels may follow once the host has the counts. Fails while a graph is recorded. */
  #beginHostCall(): () => void {
    this.#requireHost();
    return this.#device.context.beginHostCall('a layer dispatch without numWorstTokens');
  }

  #finish(sending: Sending): LayerDispatchResult<TokenDType> {
    const received = this.#receive(sending);
    return new LayerDispatchResult(received, this.#order.end(sending.options));
  }

  /** Fails while a graph is recorded. */
  #requireHost(): void {
    const { context } = this.#device;
    context.refuseCapture('a layer dispatch without numWorstTokens, whose host waits for counts,');
  }

  /** Recorded kernels write into the output of that time. */
  #launchRule(): () => void {
    const output = this.#memory.mapped;
    return () => {
      this.#requireIdle('the launch of a graph');
      if (this.#memory.mapped !== output) throw outgrown();
    };
  }

  /** The usual case: rows are sent right after the count exchange, without waiting for the host. */
  async #sendAtOnce(sending: Sending, wait: CallWait): Promise<void> {
    this.#launchDispatch(sending, wait);
    try {
      await this.#awaitCounts(sending, wait);
      if (!this.#hostPlan.mustGrow) return;
      await this.#grow(sending, wait);
    } catch (error) {
      // All ranks fail alike, so none of them came to the closing barrier.
      this.#calls.takeBackEpoch();
      throw error;
    }
    // The kernels left at once; the epoch of their closing barrier is still to be used.
    this.#calls.takeBackEpoch();
    this.#launchDispatch(sending, wait);
  }

  async #placeThenSend(sending: Sending, wait: CallWait): Promise<void> {
    this.#launchPlace(sending, wait);
    const isPlaced = (): boolean => this.#hostPlan.isPlaced(this.#dispatches);
    traceBegin('layer.dispatch.places');
    await this.#calls.waitFor('The check of fullScatterIndices', isPlaced, wait);
    traceEnd('layer.dispatch.places');
    await this.#hostPlan.throwIfFailed(sending.input);
    this.#launchDispatch(sending, wait);
  }

  async #awaitCounts({ input }: Sending, wait: CallWait): Promise<void> {
    const isCounted = (): boolean => this.#hostPlan.isCounted(this.#dispatches);
    traceBegin('layer.dispatch.counts');
    await this.#calls.waitFor('The count exchange of a layer dispatch', isCounted, wait);
    traceEnd('layer.dispatch.counts');
    await this.#hostPlan.throwIfFailed(input);
  }

  /**
   * Everyone knows everyone's rows, so all decide alike to come here, and fail alike if there is no room. If a rank does not
   * answer, nobody knows what the others have now: the layer is given up.
   */
  async #grow({ stream }: Sending, wait: CallWait): Promise<void> {
    try {
      await this.#context.reallocateDispatchOutputBuf(Math.max(...this.#hostPlan.recvRows), remaining(wait));
    } catch (error) {
      throw isSharedByAll(error) ? error : this.#calls.giveUp(error);
    }
    bindOutput(this.#launches, this.#memory);
    // What made the kernels leave is over.
    const { status } = layerPlan.offset;
    this.#device.setBytes(this.#scratch.plan.slice(status, status + 4), 0, stream);
  }

  #launchPrepare(sending: Sending): void {
    traceBegin('layer.launch');
    const { prepare } = this.#launches;
    const set = prepare.arguments;
    this.#dispatches = this.#calls.nextDispatch;
    const { input, tables } = sending;
    set.set('topk', input.topkIdx.address);
    set.set('indexBytes', dtypes[input.topkIdx.dtype].bytes);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('numInputTokens', tables.numInputTokens.address);
    set.set('recvCounts', tables.recvCounts?.address ?? 0);
    set.set('rowBound', input.rowBound);
    set.set('tokens', input.numTokens);
    set.set('weightBytes', input.topkWeights ? dtypes[input.topkWeights.dtype].bytes : 0);
    set.set('scattered', input.fullScatterIndices ? 1 : 0);
    set.set('wayTable', tables.crossing?.wayTable.address ?? 0);
    set.set('route', tables.crossing?.route.address ?? 0);
    set.set('timeoutNs', this.#calls.timeoutNs(sending.options));
    set.set('epoch', this.#calls.nextEpochs(1));
    set.set('call', callWord({ kind: 'layer dispatch' }, 'opening'));
    set.set('sequence', this.#calls.givenDispatch);
    this.#network?.wake();
    prepare.launch(sending.stream);
    this.#calls.countDispatch();
    traceEnd('layer.launch');
  }

  #launchPlace(sending: Sending, wait: CallWait): void {
    traceBegin('layer.launch');
    const { place } = this.#launches;
    const set = place.arguments;
    const { input, tables } = sending;
    const places = input.fullScatterIndices as Tensor<'i32' | 'i64'>;
    set.set('topk', input.topkIdx.address);
    set.set('indexBytes', dtypes[input.topkIdx.dtype].bytes);
    set.set('places', places.address);
    set.set('placeBytes', dtypes[places.dtype].bytes);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('tokens', input.numTokens);
    set.set('timeoutNs', this.#calls.timeoutNs(wait));
    set.set('sequence', this.#dispatches);
    for (let barrier = 0; barrier < 3; barrier++) {
      set.set('epochs', this.#calls.nextEpochs(1), barrier);
      set.set('calls', callWord({ kind: 'layer dispatch', detail: barrier }, 'middle'), barrier);
    }
    place.launch(sending.stream);
    traceEnd('layer.launch');
  }

  #launchDispatch(sending: Sending, wait: CallWait): void {
    traceBegin('layer.launch');
    const { dispatch } = this.#launches;
    const set = dispatch.arguments;
    const { input, tables } = sending;
    set.set('x', input.x.address);
    set.set('topk', input.topkIdx.address);
    set.set('indexBytes', dtypes[input.topkIdx.dtype].bytes);
    set.set('weights', input.topkWeights?.address ?? 0);
    set.set('weightBytes', input.topkWeights ? dtypes[input.topkWeights.dtype].bytes : 0);
    set.set('rowTable', tables.rowTable.address);
    set.set('rankTable', tables.rankTable.address);
    set.set('tokens', input.numTokens);
    set.set('rowBound', input.rowBound);
    set.set('placed', input.fullScatterIndices ? 1 : 0);
    if (tables.crossing) setCrossing(set, tables.crossing);
    set.set('timeoutNs', this.#calls.timeoutNs(wait));
    set.set('closingEpoch', this.#calls.nextEpochs(1));
    set.set('closingCall', callWord({ kind: 'layer dispatch' }, 'closing'));
    dispatch.launch(sending.stream);
    traceEnd('layer.launch');
  }

  /** Tables that the descriptor needs beyond the next dispatch are copied in the order of the stream. */
  #receive({ input, tables, set, stream }: Sending): LayerReceived {
    const { config } = this.#context;
    const [device, memory, hostPlan] = [this.#device, this.#memory, this.#hostPlan];
    const { rowBound } = input;
    const isBounded = rowBound !== 0;
    const numRecvTokens = isBounded ? rowBound : hostPlan.recvRows[config.rank]!;
    const handle = new EPAllToAllLayoutDesc(
      {
        ...tables,
        set,
        owner: this.#context,
        sequence: this.#dispatches,
        input,
        numRecvTokens,
        numRecvTokensPerExpert: isBounded ? [] : hostPlan.perExpert,
        firstRows: memory.view('i32', 'firstRow', [numRecvTokens]),
        duplicates: memory.view('i32', 'duplicates', [numRecvTokens, config.maxTopk]),
        // A repeated token has two rows at least.
        repeated: memory.view('i32', 'repeated', [isBounded ? Math.floor(rowBound / 2) : hostPlan.repeated]),
        plan: isBounded ? this.#scratch.plan : undefined,
      },
      {
        localCombine: this.#options.enableLocalCombine,
        offsetDtype: config.offsetDtype,
        copy: (table) => copyTable(device, table, stream),
        widen: (table) => widenTable(device, table, { widen: this.#launches.widen, stream }),
      },
    );
    return {
      recvX: memory.view(config.tokenDtype, 'rows', [numRecvTokens, config.hidden]),
      recvTopkWeights: input.topkWeights && memory.view(config.weightDtype, 'weights', [numRecvTokens]),
      handle,
    };
  }
}

function outgrown(): WeftlineError {
  return new WeftlineError(
    'WL_CLOSED',
    'Cannot launch the graph: the output of its layer has been replaced by a larger one since; record it again',
  );
}

function notPlaced(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'fullScatterIndices of ranks on several hosts is not built for GPUs: leave it out, or make a group per host',
  );
}

// Copies of tables in device memory, enqueued on a stream.

interface CopiedBytes {
  readonly to: number;
  readonly from: number;
  readonly bytes: number;
}

function copyBytes(device: CudaDevice, { to, from, bytes }: CopiedBytes, stream: CudaStream): void {
  if (bytes === 0) return;
  const { context } = device;
  context.workCount += 1;
  context.call('cuMemcpyDtoDAsync', to, from, bytes, stream.handle);
}

function copyTable<D extends DType>(device: CudaDevice, table: Tensor<D>, stream: CudaStream): Tensor<D> {
  const copy = device.empty(table.dtype, table.shape);
  copyBytes(device, { to: copy.address, from: table.address, bytes: copy.bytes }, stream);
  return copy;
}

/** The same numbers as i64. */
function widenTable(
  device: CudaDevice,
  table: Tensor<'i32'>,
  launch: { readonly widen: LaunchPlan<keyof typeof layerWidenArguments.offset>; readonly stream: CudaStream },
): Tensor<'i64'> {
  const wide = device.empty('i64', table.shape);
  if (table.elements === 0) return wide;
  const { widen, stream } = launch;
  widen.arguments.set('from', table.address);
  widen.arguments.set('to', wide.address);
  widen.arguments.set('count', table.elements);
  widen.launch(stream);
  return wide;
}

// A dispatch of a layer under way on a GPU, and what its kernels are told of it.

/** What a dispatch writes for its descriptor. */
interface NewTables {
  /** i32 [1, maxTokensPerRank, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [ranks] */
  readonly numInputTokens: Tensor<'i32'>;
  /** Tables of what crosses to other hosts, in a group on several. */
  readonly crossing: CrossingTables | undefined;
  /** i32 [experts of this rank]; of a dispatch with a bound on its rows. */
  readonly recvCounts: Tensor<'i32'> | undefined;
}

/** A dispatch under way. */
interface Sending {
  readonly input: LayerInput;
  readonly tables: NewTables;
  /** Disposes the tables. */
  readonly set: Disposable;
  readonly stream: CudaStream;
  readonly options: EpCallOptions;
}

/** Sets them for a dispatch, or for a combine with the descriptor of the tables. */
function setCrossing(
  set: { set(name: 'wayTable' | 'route' | 'forwardRows' | 'forwardRanks', value: number): void },
  { wayTable, route, forwardRows, forwardRanks }: CrossingTables,
): void {
  set.set('wayTable', wayTable.address);
  set.set('route', route.address);
  set.set('forwardRows', forwardRows.address);
  set.set('forwardRanks', forwardRanks.address);
}

// Makes the engine of a layer on GPUs: the ranks compile and, on several hosts, make links together.

type Parts = Omit<LayerEngineParts, 'calls' | 'hooks'>;

/** Collective: compiles the kernels and takes their memory; every rank gets the same error if one cannot. */
export async function createCudaLayerEngine(
  context: DispatchCombineContext,
  options: LayerEngineOptions & CallWait,
): Promise<LayerEngine> {
  const { memory, config, group } = context;
  if (memory.kind !== 'cuda') throw new WeftlineError('WL_INTERNAL', 'This context lies in the memory of CPU ranks');
  const { device } = memory;
  const prepare = (launches: LayerLaunches): Parts => {
    const scratch = TensorSet.together(device, (tensors) => makeLayerScratch(tensors, context, launches.tileWords));
    return { memory, launches, scratch, options };
  };
  const load = (): Promise<LayerLaunches> => loadLayerLaunches(device, context, options);
  const parts = await agreeOnKernels(group, { what: 'EPAll2AllLayer', load, prepare, release }, options);
  const hooks: CallHooks = {};
  const calls = new CudaCalls(group, device, {
    findFailure: () => hooks.findFailure?.(),
    onGiveUp: (error) => hooks.network?.giveUp(error),
    explain: (trap) => hooks.network?.explain(trap),
  });
  try {
    const size = layerPinnedSize(config, group);
    const { maxTokensPerRank } = config;
    const { rdmaBuffer } = memory;
    const of = { group, device, name: 'a2a', calls, maxTokensPerRank, isWide: isWideSum(config), rdmaBuffer };
    if (size !== undefined) hooks.network = await CudaHostNetwork.create({ ...options, ...of, size });
    return new CudaLayerEngine(context, { ...parts, calls, hooks });
  } catch (error) {
    calls[Symbol.dispose]();
    release(parts);
    throw error;
  }
}

function release({ scratch }: Parts): void {
  scratch[Symbol.dispose]();
}
