// EpBuffer: dispatch sends each token once to every rank that holds one of its experts; combine brings the sums back.
import { checkOptions } from '../../core/check-options.ts';
import { startCall, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import {
  type EpBufferConfig,
  epBufferOptionNames,
  type EpBufferOptions,
  type EpBufferSize,
  withDefaults,
} from './buffer-size.ts';
import { CallGuard } from '../../group/call-guard.ts';
import { shrinkObject, type ShrinkOptions } from '../../group/shrink.ts';
import {
  callOptions,
  checkCombine,
  checkDispatch,
  checkHandle,
  type CombineArguments,
  type CombineResult,
  type DispatchArguments,
  type DispatchResult,
  type EpEngine,
  type EpScope,
  type RowsLike,
} from './call-arguments.ts';
import { createCpuEngine } from './cpu/cpu-engine.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import type { DispatchLayout } from './dispatch-layout.ts';
import { countRows } from './count-rows.ts';
import { checkTensor, requireDevice, requireGroup } from '../../group/tensor-check.ts';

/**
 * Expert-parallel dispatch and combine between the ranks of a group: one row per (token, rank), as in the high-throughput
 * mode of DeepEP. To another host a row travels once, however many ranks there receive it. Calls of all ranks are made in
 * the same order; each has one deadline. After a failure that leaves the ranks in disagreement, every later call fails with
 * its reason.
 */
export class EpBuffer implements AsyncDisposable {
  readonly #scope: EpScope;
  readonly #engine: EpEngine;
  readonly #guard: CallGuard;
  readonly #rdmaBuffer: Tensor<'u8'> | undefined;

  /**
   * Collective over the group (a world is one), whose ranks use the same kind of device and may be on several hosts. Fails
   * on every rank with the same error: WL_INVALID_ARGUMENT, WL_UNSUPPORTED (more GPUs than kernels serve), WL_CONFIG_MISMATCH,
   * WL_MEMORY, WL_SHARED_MEMORY, WL_CUDA or WL_TIMEOUT.
   * @param group The ranks that take part; a world is a group.
   * @param device This rank's.
   * @param config The same on all ranks.
   * @param options How long to wait for the others, and this rank's own memory for the network.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    config: EpBufferConfig,
    options: EpBufferOptions = {},
  ): Promise<EpBuffer> {
    requireGroup(group);
    requireDevice(device);
    checkOptions(options, epBufferOptionNames, 'options of EpBuffer.create');
    const full = withDefaults(config);
    const wait = startCall(options, group.settings.timeoutMs);
    const { rdmaBuffer } = options;
    if (device.kind === 'cpu') return new EpBuffer(await createCpuEngine(group, device, full, wait), rdmaBuffer);
    // Loaded here, so that CPU ranks never load what GPUs need.
    const { createCudaEngine } = await import('./cuda/cuda-engine.ts');
    return new EpBuffer(await createCudaEngine(group, device, full, wait), rdmaBuffer);
  }

  private constructor(
    { scope, engine }: { readonly scope: EpScope; readonly engine: EpEngine },
    rdmaBuffer?: Tensor<'u8'>,
  ) {
    this.#scope = scope;
    this.#engine = engine;
    this.#rdmaBuffer = rdmaBuffer;
    this.#guard = new CallGuard('EpBuffer', scope.group.ranks);
    engine.guardLaunches?.((what) => this.#guard.requireIdle(what));
  }

  /** The ranks that it was made over. */
  get group(): RankGroup {
    return this.#scope.group;
  }

  /** This rank's device. */
  get device(): Device {
    return this.#scope.device;
  }

  /** What create() was given, with defaults filled in. */
  get config(): Readonly<Required<EpBufferConfig>> {
    return this.#scope.config;
  }

  /** What it takes. */
  get size(): EpBufferSize {
    return this.#scope.size;
  }

  /** Counts for dispatch. Local, no rank waits for another. `topkIdx` [T, K], -1 for no expert. The caller owns the result. */
  getDispatchLayout(args: { readonly topkIdx: Tensor<'i32' | 'i64'> }): DispatchLayout {
    this.#guard.requireOpen();
    checkOptions(args, { topkIdx: true }, 'arguments of getDispatchLayout');
    const { topkIdx } = args;
    const { device } = this.#scope;
    const choices = checkTensor('topkIdx', topkIdx, { device, dtype: ['i32', 'i64'], shape: ['T', 'K'] });
    return this.#engine.getDispatchLayout(choices);
  }

  /**
   * Collective. Sends row t of `x` once to every rank that `topkIdx[t]` names an expert of. Bad arguments fail with
   * WL_INVALID_ARGUMENT on this rank before it does anything; the others then wait for it. A choice that is out of range, or
   * a layout that disagrees with itself or the choices, fails on every rank.
   */
  dispatch<X extends RowsLike, I extends 'i32' | 'i64'>(
    args: DispatchArguments<X> & { readonly topkIdx: Tensor<I>; readonly topkWeights: Tensor<'f32'> },
  ): Promise<DispatchResult<X, Tensor<I>, Tensor<'f32'>>>;
  dispatch<X extends RowsLike, I extends 'i32' | 'i64'>(
    args: DispatchArguments<X> & { readonly topkIdx: Tensor<I> },
  ): Promise<DispatchResult<X, Tensor<I>>>;
  dispatch<X extends RowsLike>(
    args: DispatchArguments<X> & { readonly handle: DispatchHandle },
  ): Promise<DispatchResult<X, undefined, undefined>>;
  dispatch<X extends RowsLike>(args: DispatchArguments<X>): Promise<DispatchResult<X>>;
  async dispatch(args: DispatchArguments): Promise<DispatchResult> {
    return this.#guard.run('dispatch', async () => {
      this.#engine.throwIfUnusable();
      const input = checkDispatch(args, this.#scope, this.#engine.regions);
      const { handle } = input;
      const options = callOptions(args, this.group.settings.timeoutMs);
      const result = await (handle === undefined
        ? this.#engine.dispatch(input, options)
        : this.#engine.dispatchCached(input, handle, options));
      const rowBytes = this.config.hidden * dtypes[input.data.dtype].bytes;
      this.#guard.bytes = countRows('dispatch', { group: this.group, handle: result.handle, rowBytes });
      return result;
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [rows, H] in this rank's window, valid
   * until combine() returns. With combineRows 'shared' it is the memory of recvX.
   */
  combineInput(handle: DispatchHandle): Tensor<'bf16'> {
    this.#guard.requireOpen();
    const { rows } = checkHandle(handle, this.#scope);
    return this.#engine.regions.view('bf16', 'combineRows', [rows, this.config.hidden]);
  }

  /** Collective. The unweighted sum of the rows that the ranks hold of each token, back at the token's rank. */
  combine(args: CombineArguments & { readonly topkWeights: Tensor<'f32'> }): Promise<CombineResult<Tensor<'f32'>>>;
  combine(args: CombineArguments): Promise<CombineResult>;
  async combine(args: CombineArguments): Promise<CombineResult> {
    return this.#guard.run('combine', async () => {
      this.#engine.throwIfUnusable();
      const input = checkCombine(args, this.#scope, this.#engine.regions.storage);
      const result = await this.#engine.combine(input, callOptions(args, this.group.settings.timeoutMs));
      const rowBytes = this.config.hidden * dtypes.bf16.bytes;
      this.#guard.bytes = countRows('combine', { group: this.group, handle: input.handle, rowBytes });
      return result;
    });
  }

  /**
   * Address, as this process maps it, of a row of the receive (or combine) region of any rank of this host; for benchmarks.
   * @internal
   */
  peerRowAddress(rank: number, row: number, region: 'rows' | 'combineRows' = 'rows'): number {
    const index = this.group.topology.scaleUpIndexOf(rank);
    return this.#engine.regions.address(region, index) + row * this.config.hidden * 2;
  }

  /**
   * The way to the group's other hosts, undefined on one host; for benchmarks.
   * @internal
   */
  get hostNetwork(): EpEngine['hostNetwork'] {
    return this.#engine.hostNetwork;
  }

  /** Collective: returns when all ranks have called it. */
  barrier(options: WaitOptions = {}): Promise<void> {
    return this.#guard.run('barrier', () => {
      checkOptions(options, waitOptionNames, 'options of EpBuffer.barrier');
      return this.#engine.barrier(startCall(options, this.group.settings.timeoutMs));
    });
  }

  /**
   * Collective over the ranks of the group that live, after a failure: closes this buffer and makes another one over the group that
   * they form (RankGroup.shrink), which the caller owns. It has this one's configuration, but for what `config` says, and this
   * rank's `rdmaBuffer`; handles of this buffer are of no use to it. Works on a closed buffer, and again where it failed. Fails with
   * WL_INACTIVE on a rank that was left out, WL_INVALID_ARGUMENT if the configuration does not fit the ranks that are left, else
   * as RankGroup.shrink() and EpBuffer.create() do.
   */
  shrink(options: ShrinkOptions<EpBufferConfig> = {}): Promise<EpBuffer> {
    const rdmaBuffer = this.#rdmaBuffer;
    return shrinkObject(
      {
        object: 'EpBuffer',
        group: this.group,
        close: () => this.close(),
        create: (group, changes, wait) =>
          EpBuffer.create(
            group,
            this.#scope.device as CpuDevice | CudaDevice,
            { ...this.config, ...changes },
            { ...wait, ...(rdmaBuffer && { rdmaBuffer }) },
          ),
      },
      options,
    );
  }

  /** Releases the window here. Not collective; ranks that still wait for this one get WL_PEER_LOST. Idempotent. */
  async close(): Promise<void> {
    if (this.#guard.close()) await this.#engine.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
