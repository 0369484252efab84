// The GPU's way of an EpBuffer call: kernels that meet their peers on the device; the host waits for a count, if at all.
import { EP_SYNC_BYTES, epPlan, epScratch, epStatus } from '../../../abi/ep.ts';
import { type CallWait, remaining } from '../../../core/deadline.ts';
import { dtypes } from '../../../core/dtype.ts';
import { invalidArgument, type WeftlineError } from '../../../core/errors.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { CudaHostNetwork, requireNetworkLimits } from '../../across-hosts/cuda-host-network.ts';
import { checkRdmaBuffer } from '../../across-hosts/network-size.ts';
import {
  bufferSize,
  type EpBufferConfig,
  type EpBufferOptions,
  type EpRegion,
  type SizesByDevice,
} from '../buffer-size.ts';
import type {
  CheckedCombine,
  CombineResult,
  DispatchPlanInput,
  DispatchResult,
  EpCallOptions,
  EpEngine,
  EpScope,
  RowsLike,
} from '../call-arguments.ts';
import { bindLaunches, CudaHostPlan, type CudaLaunches, type LaunchMemory, loadLaunches } from './cuda-launches.ts';
import { DispatchHandle } from '../dispatch-handle.ts';
import { type DispatchLayout, emptyLayout } from '../dispatch-layout.ts';
import { agreeOn, agreeOnKernels } from '../../../group/agree.ts';
import { type Call, callWord } from '../../../group/calls.ts';
import { CudaCallOrder, CudaCalls, type RecordingOf, requireCudaLimits } from '../../../group/cuda-calls.ts';
import { overlaps } from '../../../group/tensor-check.ts';
import { PlacedRegions } from '../../../windows/region-layout.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';

/** What calls ask of parts that are made after them. */
export interface CallHooks {
  network?: CudaHostNetwork;
  findFailure?: () => WeftlineError | undefined;
}

/** What the ranks have made together. */
interface EngineParts extends Pick<LaunchMemory, 'hostPlan' | 'counter' | 'scratch'> {
  readonly launches: CudaLaunches;
  readonly window: CudaWindow;
  readonly calls: CudaCalls;
  readonly hooks: CallHooks;
}

class CudaEpEngine implements EpEngine {
  readonly regions: PlacedRegions<EpRegion>;
  readonly #scope: EpScope<CudaDevice>;
  readonly #device: CudaDevice;
  readonly #window: CudaWindow;
  readonly #launches: CudaLaunches;
  readonly #memory: LaunchMemory;
  readonly #order: CudaCallOrder;
  readonly #calls: CudaCalls;
  readonly #network: CudaHostNetwork | undefined;
  readonly #recording: RecordingOf;
  #requireIdle: (what: string) => void = () => {};
  /** The dispatch that the host waits for, which tells of its failure itself; 0 for none. */
  #awaited = 0;

  constructor(scope: EpScope<CudaDevice>, parts: EngineParts) {
    const { device } = scope;
    const { launches, window, calls, hooks, hostPlan, counter, scratch } = parts;
    this.regions = new PlacedRegions(window, scope.size.regions, EP_SYNC_BYTES);
    this.#scope = scope;
    this.#device = device;
    this.#window = window;
    this.#launches = launches;
    this.#calls = calls;
    this.#network = hooks.network;
    hooks.findFailure = () => this.#findFailure();
    const network = hooks.network?.address ?? 0;
    const { traps, lastEpochAddress } = calls;
    this.#memory = { addresses: window.addresses, hostPlan, traps, lastEpochAddress, counter, scratch, network };
    this.#order = new CudaCallOrder(device);
    this.#recording = {
      order: this.#order,
      network: hooks.network,
      begin: () => () => this.#requireIdle('the launch of a graph'),
    };
    bindLaunches(launches, scope, this.#memory);
    this.#setTimeout({});
  }

  get hostNetwork(): CudaHostNetwork | undefined {
    return this.#network;
  }

  guardLaunches(requireIdle: (what: string) => void): void {
    this.#requireIdle = requireIdle;
  }

  throwIfUnusable(): void {
    this.#calls.throwIfUnusable();
  }

  getDispatchLayout(topkIdx: Tensor<'i32' | 'i64'>): DispatchLayout {
    const device = this.#device;
    const { group, config } = this.#scope;
    const tokens = topkIdx.shape[0]!;
    const shape = { ranks: group.size, experts: config.numExperts };
    const layout = TensorSet.together(device, (tensors) => emptyLayout(tensors, tokens, shape));
    // Blocks add to the counts.
    for (const counts of [layout.numTokensPerRank, layout.numTokensPerExpert]) device.setBytes(counts, 0);
    const plan = this.#launches.layout;
    const set = plan.arguments;
    set.set('topk', topkIdx.address);
    set.set('topkColumns', topkIdx.shape[1]!);
    set.set('indexBytes', dtypes[topkIdx.dtype].bytes);
    set.set('tokens', tokens);
    set.set('isTokenInRank', layout.isTokenInRank.address);
    set.set('numTokensPerRank', layout.numTokensPerRank.address);
    set.set('numTokensPerExpert', layout.numTokensPerExpert.address);
    plan.launch();
    return layout;
  }

  async dispatch(input: DispatchPlanInput, options: EpCallOptions): Promise<DispatchResult> {
    const device = this.#device;
    const { group, size, config } = this.#scope;
    const { hostPlan } = this.#memory;
    const local = this.#window.ranks.length;
    const network = this.#network;
    // A bound makes the results' sizes known beforehand; how the dispatch went shows later.
    const waits = input.numWorstTokens === 0;
    if (waits) device.context.refuseCapture('a dispatch without numWorstTokens, whose host waits for counts,');
    const sequence = this.#calls.nextDispatch;
    const { set, made } = TensorSet.make(device, (tensors) => ({
      rowTable: tensors.empty('i32', [input.numTokens, group.size + (network?.routes.ways.length ?? 0)]),
      forwardPlaces: network && tensors.empty('i32', [network.routes.served.length, config.maxTokensPerRank, local]),
      plan: tensors.empty('u8', [epPlan.size]),
      recvSrcIdx: tensors.empty('i32', [input.numWorstTokens || size.maxRecvTokens]),
    }));
    let event: CudaEvent | undefined;
    try {
      event = this.#launchDispatch(input, { ...made, sequence }, options);
      if (waits) await this.#awaitPlan(sequence, input, options);
    } catch (error) {
      set[Symbol.dispose]();
      event?.[Symbol.dispose]();
      throw error;
    }
    const { rowTable, plan, recvSrcIdx, forwardPlaces } = made;
    const rows = input.numWorstTokens || hostPlan.numRecvTokens;
    const handle = new DispatchHandle({
      owner: this.#scope,
      sequence,
      numTokens: input.numTokens,
      numRecvTokens: waits ? rows : undefined,
      rows,
      memory: set,
      rowTable,
      plan,
      forwardPlaces,
      rankPrefixMatrix: waits ? hostPlan.rankPrefixMatrix() : undefined,
      networkRows: waits ? hostPlan.networkRows : undefined,
      recvSrcIdx: recvSrcIdx.slice(0, rows),
      numRecvTokensPerExpert: waits ? hostPlan.perExpert(input.expertAlignment) : [],
    });
    const k = input.topkIdx?.shape[1] ?? 0;
    return {
      recvX: this.#receivedRows(input, rows),
      recvTopkIdx: input.topkIdx && this.regions.view(input.topkIdx.dtype, 'topkIdx', [rows, k]),
      recvTopkWeights: input.topkWeights && this.regions.view('f32', 'topkWeights', [rows, k]),
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
      event,
    };
  }

  dispatchCached(input: DispatchPlanInput, handle: DispatchHandle, options: EpCallOptions): Promise<DispatchResult> {
    const event = this.#launchDispatch(input, handle, options);
    return Promise.resolve({
      recvX: this.#receivedRows(input, handle.rows),
      recvTopkIdx: undefined,
      recvTopkWeights: undefined,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
      event,
    });
  }

  combine(input: CheckedCombine, options: EpCallOptions): Promise<CombineResult> {
    const { handle, weights, biases, x } = input;
    const { hidden } = this.#scope.config;
    const k = weights?.shape[1] ?? 0;
    const combinedX = input.out ?? this.#device.empty('bf16', [handle.numTokens, hidden]);
    const combinedTopkWeights = weights && this.#device.empty('f32', [handle.numTokens, k]);
    traceBegin('ep.launch');
    this.#setTimeout(options);
    this.#calls.record(this.#recording);
    const stream = this.#order.begin(options);
    this.#stage(x, 'combineRows', stream);
    if (weights) this.#stage(weights, 'combineWeights', stream);
    const { combine } = this.#launches;
    const set = combine.arguments;
    set.set('out', combinedX.address);
    set.set('outWeights', combinedTopkWeights?.address ?? 0);
    set.set('topkColumns', k);
    set.set('bias0', biases[0]?.address ?? 0);
    set.set('bias1', biases[1]?.address ?? 0);
    set.set('rowTable', handle.rowTable.address);
    set.set('plan', (handle.plan as Tensor<'u8'>).address);
    set.set('tokens', handle.numTokens);
    const call: Call = { kind: 'combine', detail: k, handle: handle.sequence };
    set.set('openingEpoch', this.#calls.nextEpochs(2));
    set.set('openingCall', callWord(call, 'opening'));
    set.set('closingCall', callWord(call, 'closing'));
    this.#crossHosts(set, handle);
    combine.launch(stream);
    traceEnd('ep.launch');
    const event = this.#order.end(options);
    return Promise.resolve({ combinedX, combinedTopkWeights, event });
  }

  /** The host waits for the device, then for the other ranks: afterwards nothing of this buffer runs anywhere. */
  async barrier(wait: CallWait): Promise<void> {
    await this.#order.idle(wait);
    this.throwIfUnusable();
    await this.#scope.group.barrier('ep', remaining(wait));
  }

  async close(): Promise<void> {
    // Kernels that still run use the window.
    await this.#order.drained();
    // What this rank has sent, peers may still wait for.
    await this.#network?.close();
    const { hostPlan, counter, scratch } = this.#memory;
    for (const part of [this.#order, counter, scratch, hostPlan, this.#calls, this.#window]) part[Symbol.dispose]();
  }

  /** What a call needs to know besides where peers are on several hosts. */
  #crossHosts(
    set: { set(name: 'forwardPlaces', value: number): void },
    { forwardPlaces }: Pick<DispatchHandle, 'forwardPlaces'>,
  ): void {
    if (forwardPlaces === undefined) return;
    set.set('forwardPlaces', forwardPlaces.address);
    this.#network?.wake();
  }

  #setTimeout(wait: CallWait): void {
    const { dispatch, combine } = this.#launches;
    const timeoutNs = this.#calls.timeoutNs(wait);
    for (const plan of [dispatch.bf16.plan, dispatch.fp8e4m3.plan, combine]) plan.arguments.set('timeoutNs', timeoutNs);
  }

  /** `to`: a handle to replay, or the parts of a new one to fill in. */
  #launchDispatch(
    input: DispatchPlanInput,
    to: DispatchHandle | NewHandle,
    options: EpCallOptions,
  ): CudaEvent | undefined {
    const { plan, rowWarps } = this.#launches.dispatch[input.data.dtype];
    const set = plan.arguments;
    const replay = to instanceof DispatchHandle;
    const { bytes } = dtypes[input.data.dtype];
    const call: Call = replay ? { kind: 'cached dispatch', detail: bytes, handle: to.sequence } : { kind: 'dispatch' };
    traceBegin('ep.launch');
    this.#setTimeout(options);
    this.#calls.record(this.#recording);
    // Whatever may fail comes before the epochs are taken: the other ranks count them too.
    const stream = this.#order.begin(options);
    const { data, scales } = input;
    set.set('x', data.address);
    set.set('scales', scales?.address ?? 0);
    set.set('scaleBytes', scales ? scales.shape[1]! * 4 : 0);
    set.set('tokens', input.numTokens);
    set.set('rowWarps', rowWarps(input.numTokens));
    setChoices(set, input);
    set.set('rowTable', to.rowTable.address);
    set.set('plan', (to.plan as Tensor<'u8'>).address);
    set.set('recvSource', replay ? 0 : to.recvSrcIdx.address);
    set.set('counts', replay ? 0 : 1);
    set.set('sequence', replay ? 0 : this.#calls.givenDispatch);
    set.set('openingEpoch', this.#calls.nextEpochs(2));
    set.set('openingCall', callWord(call, 'opening'));
    set.set('closingCall', callWord(call, 'closing'));
    set.set('worstRows', replay ? 0 : input.numWorstTokens);
    this.#crossHosts(set, to);
    plan.launch(stream);
    if (!replay) this.#calls.countDispatch();
    traceEnd('ep.launch');
    return this.#order.end(options);
  }

  /** Waits until the kernel has told the host how many rows arrive; fails when none will, or when its wait has expired. */
  async #awaitPlan(sequence: number, { topkIdx }: DispatchPlanInput, options: EpCallOptions): Promise<void> {
    const { hostPlan } = this.#memory;
    this.#awaited = sequence;
    try {
      traceBegin('ep.dispatch.counts');
      await this.#calls.waitFor('The count exchange of a dispatch', () => hostPlan.isThere(sequence), options);
      traceEnd('ep.dispatch.counts');
    } finally {
      this.#awaited = 0;
    }
    const failure = hostPlan.takeFailure();
    if (failure === undefined) return;
    const own = failure.status === epStatus.badChoice && failure.rank === this.#scope.group.rank;
    throw hostPlan.errorOf(failure, own ? (await topkIdx?.toHost())?.[failure.detail] : undefined);
  }

  /** The failure of a dispatch with a bound on its rows, which nobody waited for. */
  #findFailure(): WeftlineError | undefined {
    const { hostPlan } = this.#memory;
    const failure = hostPlan.takeFailure(this.#awaited);
    return failure && hostPlan.errorOf(failure, 'unknown');
  }

  #receivedRows({ data, scales }: DispatchPlanInput, rows: number): RowsLike {
    const received = this.regions.view(data.dtype, 'rows', [rows, this.#scope.config.hidden]);
    if (!scales) return received as Tensor<'bf16'>;
    const groups = scales.shape[1]!;
    return { data: received as Tensor<'fp8e4m3'>, scales: this.regions.view('f32', 'scales', [rows, groups]) };
  }

  /** Brings a tensor to where the peers read it, in the order of the stream, unless it is there already. */
  #stage(tensor: Tensor, region: 'combineRows' | 'combineWeights', stream: CudaStream): void {
    const target = this.regions.address(region);
    if (tensor.address === target || tensor.bytes === 0) return;
    if (overlaps(tensor, target, tensor.bytes)) {
      const allowed = 'combineInput of the same handle, or a tensor that shares no bytes with it';
      throw invalidArgument(region, 'a tensor that overlaps where peers read it', allowed);
    }
    const { context } = this.#device;
    context.workCount += 1;
    context.call('cuMemcpyDtoDAsync', target, tensor.address, tensor.bytes, stream.handle);
  }
}

/** What a dispatch makes besides moving rows. */
interface NewHandle {
  readonly rowTable: Tensor<'i32'>;
  readonly forwardPlaces: Tensor<'i32'> | undefined;
  readonly plan: Tensor<'u8'>;
  readonly recvSrcIdx: Tensor<'i32'>;
  readonly sequence: number;
}

// What a dispatch sends, as arguments of its kernel.

type DispatchBlock = CudaLaunches['dispatch']['bf16']['plan']['arguments'];

/** Choices are counted afresh; a layout without them brings its marks and its counts per expert. */
function setChoices(set: DispatchBlock, { topkIdx, topkWeights, layout }: DispatchPlanInput): void {
  const marks = topkIdx ? undefined : layout;
  set.set('topk', topkIdx?.address ?? 0);
  set.set('topkColumns', topkIdx?.shape[1] ?? 0);
  set.set('indexBytes', topkIdx ? dtypes[topkIdx.dtype].bytes : 0);
  set.set('weights', topkWeights?.address ?? 0);
  set.set('membership', marks?.isTokenInRank.address ?? 0);
  set.set('givenExperts', marks?.numTokensPerExpert.address ?? 0);
}

// Makes the engine of an EpBuffer on GPUs: the ranks agree, compile, then make windows and, on several hosts, links together.

/** Collective: agrees on the configuration, compiles the kernels, makes the window. */
export async function createCudaEngine(
  group: RankGroup,
  device: CudaDevice,
  config: Required<EpBufferConfig>,
  { rdmaBuffer, ...wait }: EpBufferOptions & CallWait,
): Promise<{ readonly scope: EpScope; readonly engine: EpEngine }> {
  const { hosts } = group.topology;
  const prepare = (): SizesByDevice['cuda'] => {
    requireCudaLimits('EpBuffer', group, config.numExperts);
    requireNetworkLimits('EpBuffer', { hosts });
    const ranksOfHosts = hosts.map(({ length }) => length);
    const size = bufferSize(config, group.size, ranksOfHosts, 'cuda');
    const { network } = size;
    if (rdmaBuffer !== undefined && network !== undefined)
      checkRdmaBuffer(rdmaBuffer, { device, bytes: network.bytes });
    return size;
  };
  const agreement = { what: 'EpBuffer', config: { ...config, device: device.kind }, prepare };
  const size = await agreeOn(group, agreement, wait);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  const parts = await agreeOnKernels(
    group,
    {
      what: 'EpBuffer',
      load: () => loadLaunches(scope),
      prepare: (launches) => prepareParts(scope, launches),
      release: releaseParts,
    },
    wait,
  );
  const made: { window?: CudaWindow; calls?: CudaCalls } = {};
  const hooks: CallHooks = {};
  try {
    const bytes = EP_SYNC_BYTES + size.bytes;
    const window = await CudaWindow.create({ ...wait, group, device, name: 'ep', bytes });
    made.window = window;
    const calls = new CudaCalls(group, device, {
      findFailure: () => hooks.findFailure?.(),
      onGiveUp: (error) => hooks.network?.giveUp(error),
      explain: (trap) => hooks.network?.explain(trap),
    });
    made.calls = calls;
    const { network: networkSize } = size;
    if (networkSize !== undefined) {
      const of = { group, device, name: 'ep', calls, maxTokensPerRank: config.maxTokensPerRank };
      const isWide = config.combinePrecision === 'f32';
      hooks.network = await CudaHostNetwork.create({ ...wait, ...of, size: networkSize, isWide, rdmaBuffer });
    }
    return { scope, engine: new CudaEpEngine(scope, { ...parts, window, calls, hooks }) };
  } catch (error) {
    hooks.network?.giveUp(error);
    await hooks.network?.close();
    made.calls?.[Symbol.dispose]();
    made.window?.[Symbol.dispose]();
    releaseParts(parts);
    throw error;
  }
}

/** What an engine has before its window. */
type Parts = Pick<EngineParts, 'launches' | 'hostPlan' | 'counter' | 'scratch'>;

function prepareParts(scope: EpScope<CudaDevice>, launches: CudaLaunches): Parts {
  const { set, made } = TensorSet.make(scope.device, (tensors) => ({
    counter: tensors.empty('i32', [1]),
    scratch: tensors.empty('u8', [epScratch.size]),
  }));
  try {
    for (const tensor of [made.counter, made.scratch]) scope.device.setBytes(tensor, 0);
    return { launches, ...made, hostPlan: new CudaHostPlan(scope) };
  } catch (error) {
    set[Symbol.dispose]();
    throw error;
  }
}

function releaseParts({ counter, scratch, hostPlan }: Parts): void {
  for (const part of [counter, scratch, hostPlan]) part[Symbol.dispose]();
}
