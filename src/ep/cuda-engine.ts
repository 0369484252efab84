// The GPU's way of an EpBuffer call: kernels that meet their peers on the device; the host waits for a count, if at all.
import { EP_MAX_EXPERTS, EP_MAX_RANKS, EP_SYNC_BYTES, epPlan } from '../abi/ep-arguments.ts';
import { type DType, dtypes } from '../core/dtype.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { pollUntil } from '../device/cuda/poll.ts';
import { Tensor } from '../device/tensor.ts';
import { CudaWindow } from '../memory/cuda-window.ts';
import { checkTimeout, type WaitOptions } from '../world/store.ts';
import type { World } from '../world/world.ts';
import { agreeOn, requireOneHost } from './agree.ts';
import { bufferSize, type EpBufferConfig, type EpBufferSize, type EpRegion } from './buffer-size.ts';
import { type Call, callWord, describeCall } from './calls.ts';
import type { CheckedCombine } from './combine-arguments.ts';
import { CudaHostPlan } from './cuda-host-plan.ts';
import { bindLaunches, type CudaLaunches, loadLaunches } from './cuda-launches.ts';
import type { DispatchPlanInput, RowsLike } from './dispatch-arguments.ts';
import { DispatchHandle } from './dispatch-handle.ts';
import type { DispatchLayout } from './dispatch-layout.ts';
import type { EpEngine, MemoryRange } from './engine.ts';
import type { CombineResult, DispatchResult } from './ep-results.ts';
import type { EpScope } from './scope.ts';

/** How much longer the host waits than a kernel, whose record says more. */
const HOST_GRACE_MS = 2_000;

/** Collective: agrees on the configuration, compiles the kernels, makes the window. */
export async function createCudaEngine(
  world: World,
  device: CudaDevice,
  config: Required<EpBufferConfig>,
  options: WaitOptions,
): Promise<{ readonly scope: EpScope; readonly engine: EpEngine }> {
  requireOneHost(world, 'EpBuffer');
  const prepare = (): EpBufferSize => {
    requireSupported(world, config);
    return bufferSize(config, world.size);
  };
  const agreement = { what: 'EpBuffer', config: { ...config, device: device.kind }, prepare };
  const size = await agreeOn(world, agreement, options);
  const scope = { world, device, config: Object.freeze({ ...config }), size };
  // Compiling may fail or take long on one rank alone, so the ranks meet again behind it.
  const launches = await loadLaunches(scope).catch((error: unknown) => error as Error);
  await agreeOn(world, { what: 'EpBuffer kernels', config: {}, prepare: () => rethrow(launches) }, options);
  const window = await CudaWindow.create({ ...options, world, device, name: 'ep', bytes: EP_SYNC_BYTES + size.bytes });
  return { scope, engine: new CudaEpEngine(scope, window, launches as CudaLaunches) };
}

function requireSupported(world: World, { numExperts }: EpBufferConfig): void {
  if (world.size <= EP_MAX_RANKS && numExperts <= EP_MAX_EXPERTS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `An EpBuffer on GPUs has at most ${EP_MAX_RANKS} ranks per host and ${EP_MAX_EXPERTS} experts; asked are ${world.size} and ${numExperts}`,
    { details: { ranks: world.size, numExperts } },
  );
}

function rethrow(value: unknown): void {
  if (value instanceof Error) throw value;
}

class CudaEpEngine implements EpEngine {
  readonly #scope: EpScope<CudaDevice>;
  readonly #device: CudaDevice;
  readonly #window: CudaWindow;
  readonly #launches: CudaLaunches;
  readonly #hostPlan: CudaHostPlan;
  /** Blocks of a kernel that are done; each kernel leaves it at zero. */
  readonly #counter: Tensor<'i32'>;
  #epoch = 0;
  #dispatches = 0;
  #broken: WeftlineError | undefined;

  constructor(scope: EpScope<CudaDevice>, window: CudaWindow, launches: CudaLaunches) {
    const { device } = scope;
    this.#scope = scope;
    this.#device = device;
    this.#window = window;
    this.#launches = launches;
    this.#hostPlan = new CudaHostPlan(scope);
    this.#counter = device.empty('i32', [1]);
    device.setBytes(this.#counter.storage, 0);
    bindLaunches(launches, scope, { addresses: window.addresses, hostPlan: this.#hostPlan, counter: this.#counter });
    this.#setTimeout({});
  }

  get mapped(): MemoryRange {
    return this.#window.storage;
  }

  throwIfUnusable(): void {
    if (this.#broken !== undefined) throw this.#broken;
    this.#throwIfExpired();
    const { peerLost } = this.#scope.world;
    if (peerLost.aborted) throw peerLost.reason;
  }

  getDispatchLayout(topkIdx: Tensor<'i32' | 'i64'>): DispatchLayout {
    const device = this.#device;
    const { world, config } = this.#scope;
    const tokens = topkIdx.shape[0] as number;
    const layout = {
      numTokensPerRank: device.empty('i32', [world.size]),
      numTokensPerExpert: device.empty('i32', [config.numExperts]),
      isTokenInRank: device.empty('u8', [tokens, world.size]),
    };
    const { prepare } = this.#launches;
    this.#setChoices(topkIdx);
    prepare.arguments.set('tokens', tokens);
    prepare.arguments.set('membership', 0);
    prepare.arguments.set('isTokenInRank', layout.isTokenInRank.address);
    prepare.arguments.set('numTokensPerRank', layout.numTokensPerRank.address);
    prepare.arguments.set('numTokensPerExpert', layout.numTokensPerExpert.address);
    prepare.arguments.set('rowTable', 0);
    prepare.arguments.set('exchange', 0);
    prepare.launch();
    const release = (): void => {
      for (const tensor of Object.values(layout)) tensor.dispose();
    };
    return { ...layout, [Symbol.dispose]: release };
  }

  async dispatch(input: DispatchPlanInput, options: WaitOptions): Promise<DispatchResult> {
    const device = this.#device;
    const { world, size } = this.#scope;
    const sequence = this.#dispatches + 1;
    const rowTable = device.empty('i32', [input.numTokens, world.size]);
    const plan = device.empty('u8', [epPlan.size]);
    const recvSrcIdx = device.empty('i32', [input.numWorstTokens || size.maxRecvTokens]);
    this.#launchPrepare(input, { rowTable, plan, sequence }, options);
    this.#dispatches = sequence;
    this.#launchDispatch(input, { rowTable, plan, recvSrcIdx }, { kind: 'dispatch' });
    await this.#awaitPlan(sequence, options);
    const failure = await this.#hostPlan.failure(input);
    if (failure !== undefined) {
      // All ranks fail alike, so none of them uses the epoch of the closing barrier.
      this.#epoch -= 1;
      for (const tensor of [rowTable, plan, recvSrcIdx]) tensor.dispose();
      throw failure;
    }
    const { numRecvTokens } = this.#hostPlan;
    const rows = input.numWorstTokens || numRecvTokens;
    const handle = new DispatchHandle({
      owner: this.#scope,
      sequence,
      numTokens: input.numTokens,
      numRecvTokens,
      rows,
      rowTable,
      plan,
      rankPrefixMatrix: this.#hostPlan.rankPrefixMatrix(),
      recvSrcIdx: recvSrcIdx.slice(0, rows),
      numRecvTokensPerExpert: input.numWorstTokens ? [] : this.#hostPlan.perExpert(input.expertAlignment),
    });
    const k = input.topkIdx?.shape[1] ?? 0;
    return {
      recvX: this.#receivedRows(input, rows),
      recvTopkIdx: input.topkIdx && this.view(input.topkIdx.dtype, 'topkIdx', [rows, k]),
      recvTopkWeights: input.topkWeights && this.view('f32', 'topkWeights', [rows, k]),
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    };
  }

  dispatchCached(input: DispatchPlanInput, handle: DispatchHandle, options: WaitOptions): Promise<DispatchResult> {
    const call: Call = {
      kind: 'cached dispatch',
      detail: dtypes[input.data.dtype].bytes,
      handle: handle.sequence,
    };
    const plan = handle.plan as Tensor<'u8'>;
    this.#setTimeout(options);
    this.#launchDispatch(input, { rowTable: handle.rowTable, plan, recvSrcIdx: undefined }, call);
    return Promise.resolve({
      recvX: this.#receivedRows(input, handle.rows),
      recvTopkIdx: undefined,
      recvTopkWeights: undefined,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    });
  }

  combine(input: CheckedCombine, options: WaitOptions): Promise<CombineResult> {
    const { handle, weights, biases, x } = input;
    const { hidden } = this.#scope.config;
    const k = weights?.shape[1] ?? 0;
    const combinedX = input.out ?? this.#device.empty('bf16', [handle.numTokens, hidden]);
    const combinedTopkWeights = weights && this.#device.empty('f32', [handle.numTokens, k]);
    this.#setTimeout(options);
    this.#stage(x, 'combineRows');
    if (weights) this.#stage(weights, 'combineWeights');
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
    set.set('openingEpoch', this.#nextEpoch());
    set.set('openingCall', callWord(call, 'opening'));
    set.set('closingEpoch', this.#nextEpoch());
    set.set('closingCall', callWord(call, 'closing'));
    combine.launch();
    return Promise.resolve({ combinedX, combinedTopkWeights });
  }

  /** The host waits for the device, then for the other ranks: afterwards nothing of this buffer runs anywhere. */
  async barrier(options: WaitOptions): Promise<void> {
    await this.#device.stream.idle(options);
    this.throwIfUnusable();
    await this.#scope.world.barrier('ep', options);
  }

  view<D extends DType>(dtype: D, region: EpRegion, shape: readonly number[]): Tensor<D> {
    const { offset, bytes } = this.#scope.size.regions[region];
    const tensor = new Tensor(this.#window.storage, dtype, shape, EP_SYNC_BYTES + offset);
    if (tensor.bytes <= bytes) return tensor;
    throw new WeftlineError('WL_INTERNAL', `A ${dtype} [${shape.join(', ')}] exceeds the ${bytes} bytes of ${region}`);
  }

  regionAddress(rank: number, region: EpRegion): number {
    return (this.#window.addresses[rank] as number) + EP_SYNC_BYTES + this.#scope.size.regions[region].offset;
  }

  async close(): Promise<void> {
    // Kernels that still run use the window; a lost device runs none.
    await this.#device.stream.idle().catch(() => {});
    this.#counter.dispose();
    this.#hostPlan[Symbol.dispose]();
    this.#window[Symbol.dispose]();
  }

  #setTimeout(options: WaitOptions): void {
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#scope.world.settings.timeoutMs);
    const { prepare, dispatch, combine } = this.#launches;
    for (const plan of [prepare, dispatch.bf16, dispatch.fp8e4m3, combine]) {
      plan.arguments.set('timeoutNs', Math.round(timeoutMs * 1e6));
    }
  }

  #setChoices(topkIdx: Tensor<'i32' | 'i64'> | undefined): void {
    const set = this.#launches.prepare.arguments;
    set.set('topk', topkIdx?.address ?? 0);
    set.set('topkColumns', topkIdx?.shape[1] ?? 0);
    set.set('indexBytes', topkIdx ? dtypes[topkIdx.dtype].bytes : 0);
  }

  #launchPrepare(
    input: DispatchPlanInput,
    to: { readonly rowTable: Tensor; readonly plan: Tensor; readonly sequence: number },
    options: WaitOptions,
  ): void {
    const { prepare } = this.#launches;
    const set = prepare.arguments;
    // Choices are counted afresh; a layout without them brings its marks and its counts per expert.
    const layout = input.topkIdx ? undefined : input.layout;
    this.#setTimeout(options);
    this.#setChoices(input.topkIdx);
    set.set('membership', layout?.isTokenInRank.address ?? 0);
    set.set('isTokenInRank', 0);
    set.set('numTokensPerRank', 0);
    set.set('numTokensPerExpert', layout?.numTokensPerExpert.address ?? 0);
    set.set('rowTable', to.rowTable.address);
    set.set('plan', to.plan.address);
    set.set('tokens', input.numTokens);
    set.set('epoch', this.#nextEpoch());
    set.set('call', callWord({ kind: 'dispatch' }, 'opening'));
    set.set('sequence', to.sequence);
    set.set('rowBytes', dtypes[input.data.dtype].bytes);
    set.set('scaleBytes', scaleBytes(input));
    set.set('weightBytes', input.topkWeights ? 4 : 0);
    set.set('rowBound', input.numWorstTokens);
    set.set('exchange', 1);
    prepare.launch();
  }

  #launchDispatch(
    input: DispatchPlanInput,
    to: { readonly rowTable: Tensor; readonly plan: Tensor; readonly recvSrcIdx: Tensor | undefined },
    call: Call,
  ): void {
    const launch = this.#launches.dispatch[input.data.dtype];
    const set = launch.arguments;
    const cached = call.kind === 'cached dispatch';
    set.set('x', input.data.address);
    set.set('scales', input.scales?.address ?? 0);
    set.set('scaleBytes', scaleBytes(input));
    set.set('topk', input.topkIdx?.address ?? 0);
    set.set('topkColumns', input.topkIdx?.shape[1] ?? 0);
    set.set('indexBytes', input.topkIdx ? dtypes[input.topkIdx.dtype].bytes : 0);
    set.set('weights', input.topkWeights?.address ?? 0);
    set.set('rowTable', to.rowTable.address);
    set.set('plan', to.plan.address);
    set.set('sendSource', cached ? 0 : 1);
    set.set('tokens', input.numTokens);
    set.set('openingEpoch', cached ? this.#nextEpoch() : 0);
    set.set('openingCall', callWord(call, 'opening'));
    set.set('closingEpoch', this.#nextEpoch());
    set.set('closingCall', callWord(call, 'closing'));
    set.set('worstRows', cached ? 0 : input.numWorstTokens);
    launch.launch();
    // The window's list is overwritten by the next dispatch; the handle keeps its own.
    if (to.recvSrcIdx)
      this.#copy(to.recvSrcIdx.address, this.regionAddress(this.#scope.world.rank, 'sourceToken'), to.recvSrcIdx.bytes);
  }

  /** The next epoch, skipping 0, which stands for "no barrier". */
  #nextEpoch(): number {
    this.#epoch = (this.#epoch + 1) >>> 0 || 2;
    return this.#epoch;
  }

  /** Until the prepare kernel has told the host how many rows arrive, or its wait has expired. */
  async #awaitPlan(sequence: number, options: WaitOptions): Promise<void> {
    const timeoutMs = (options.timeoutMs ?? this.#scope.world.settings.timeoutMs) + HOST_GRACE_MS;
    const ready = (): boolean => {
      this.#throwIfExpired();
      return this.#hostPlan.isThere(sequence);
    };
    try {
      await pollUntil(ready, { timeoutMs, signal: options.signal, what: 'The count exchange of a dispatch' });
    } catch (error) {
      this.#broken ??= asReason(error);
      throw error;
    }
    // A kernel whose wait expired reports a status as well, after its record.
    this.#throwIfExpired();
  }

  #throwIfExpired(): void {
    try {
      this.#device.traps.throwIfExpired(describeCall);
    } catch (error) {
      this.#broken ??= asReason(error);
      throw error;
    }
  }

  #receivedRows({ data, scales }: DispatchPlanInput, rows: number): RowsLike {
    const received = this.view(data.dtype, 'rows', [rows, this.#scope.config.hidden]);
    if (!scales) return received as Tensor<'bf16'>;
    const groups = scales.shape[1] as number;
    return { data: received as Tensor<'fp8e4m3'>, scales: this.view('f32', 'scales', [rows, groups]) };
  }

  /** Brings a tensor to where the peers read it, in the order of the stream, unless it is there already. */
  #stage(tensor: Tensor, region: 'combineRows' | 'combineWeights'): void {
    const target = this.regionAddress(this.#scope.world.rank, region);
    if (tensor.address === target || tensor.bytes === 0) return;
    this.#copy(target, tensor.address, tensor.bytes);
  }

  #copy(to: number, from: number, bytes: number): void {
    const { context, stream } = this.#device;
    context.workCount += 1;
    context.call('cuMemcpyDtoDAsync', to, from, bytes, stream.handle);
  }
}

function scaleBytes({ scales }: DispatchPlanInput): number {
  return scales ? (scales.shape[1] as number) * 4 : 0;
}

function asReason(error: unknown): WeftlineError {
  if (error instanceof WeftlineError) return error;
  return new WeftlineError('WL_CLOSED', 'An earlier call on this buffer was given up', { cause: error });
}
