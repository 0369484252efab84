// DispatchCombineContext: the symmetric memory of an all-to-all layer, with an output that grows.
import { type CallWait, callWaitNames, startCall, type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import type { DType } from '../../core/dtype.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { isSharedByAll } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { agreeOn } from '../../group/agree.ts';
import { requireDevice, requireGroup } from '../../group/tensor-check.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import { checkRdmaBuffer, ranksOfHosts, requirePinnedBytes } from '../across-hosts/network-size.ts';
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import {
  grownRows,
  initialRows,
  layerPinnedSize,
  type OutputRegion,
  type OutputSize,
  outputSize,
} from './output-size.ts';
import { CpuLayerMemory } from './cpu/cpu-layer-memory.ts';
import type { CudaLayerMemory } from './cuda/cuda-layer-memory.ts';
import { EPConfig, type TokenDType } from './ep-config.ts';
import { TritonContext } from './triton-names.ts';

/** What a DispatchCombineContext is made with besides its configuration. */
interface ContextOptions extends WaitOptions {
  /** Rows of the output buffer as a multiple of maxTokensPerRank * maxTopk, a balanced load; 2 by default. It grows on demand. */
  readonly capacity?: number;
  /**
   * Memory of this rank's device for the network side, `outputSize(…).network.bytes` at least, on a GPU what the error of a
   * smaller one says: [bytes]. Peers write to it until the context is closed; it stays the caller's, who closes it after that.
   * Made by the context if it is absent, and not used on one host. On a GPU that no RDMA device reaches the layer's creation
   * fails with WL_UNSUPPORTED, and says why.
   */
  readonly rdmaBuffer?: Tensor<'u8'>;
}

const contextOptionNames: OptionNames<ContextOptions & CallWait> = {
  ...callWaitNames,
  capacity: true,
  rdmaBuffer: true,
};

/** The tensors of a layer's output, which have room for its capacity of rows. */
interface OutputBuffers {
  /** [capacity rows, H] of the configuration's token dtype, in the window; valid until the next reallocation. */
  readonly dispatchOutputBuf: Tensor<TokenDType>;
  /** [capacity rows], of the configuration's weight dtype. */
  readonly weightRecvBuf: Tensor<'f32' | 'bf16'>;
}

/** The symmetric memory of a layer: one window per rank, which grows when more rows come than it holds. */
export class DispatchCombineContext extends TritonContext implements AsyncDisposable {
  readonly group: RankGroup;
  readonly device: CpuDevice | CudaDevice;
  readonly config: EPConfig;
  /** @internal For the engine of the layer: windows, exchange, barrier. */
  readonly memory: CpuLayerMemory | CudaLayerMemory;

  /**
   * Collective. The same error on every rank: WL_INVALID_ARGUMENT, WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY,
   * WL_UNSUPPORTED or WL_CUDA.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    epConfig: EPConfig,
    options: ContextOptions = {},
  ): Promise<DispatchCombineContext> {
    requireGroup(group);
    requireDevice(device);
    if (!(epConfig instanceof EPConfig)) throw invalidArgument('epConfig', epConfig, 'an EPConfig');
    checkOptions<ContextOptions>(options, contextOptionNames, 'options of DispatchCombineContext.create');
    const { capacity = 2, rdmaBuffer } = options;
    const wait = startCall(options, group.settings.timeoutMs);
    const { maxTokensPerRank, hidden, maxTopk, numExperts, tokenDtype, weightDtype } = epConfig;
    const { keepDispatchOutput, combinePrecision, numRdmaBytes } = epConfig;
    const kinds = { tokenDtype, weightDtype, keepDispatchOutput, combinePrecision, numRdmaBytes };
    const config = { maxTokensPerRank, hidden, maxTopk, numExperts, ...kinds, capacity, device: device.kind };
    const prepare = (): void => {
      if (typeof capacity !== 'number' || !(capacity > 0))
        throw invalidArgument('capacity', capacity, 'a number above 0');
      if (device.kind === 'cpu') checkRoom(epConfig, { capacity, group, device, rdmaBuffer });
      else checkPinned(epConfig, { group, device, rdmaBuffer });
    };
    await agreeOn(group, { what: 'DispatchCombineContext', config, prepare }, wait);
    const memory = await createMemory(group, device, epConfig, { ...wait, rdmaBuffer });
    try {
      await memory.allocate(initialRows(epConfig, capacity), wait);
    } catch (error) {
      await memory.close();
      throw error;
    }
    return new DispatchCombineContext(group, device, { epConfig, memory });
  }

  private constructor(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    parts: { readonly epConfig: EPConfig; readonly memory: CpuLayerMemory | CudaLayerMemory },
  ) {
    super();
    this.group = group;
    this.device = device;
    this.config = parts.epConfig;
    this.memory = parts.memory;
  }

  /** @internal Sizes of the present output buffer. */
  get outputSize(): OutputSize {
    return this.memory.size;
  }

  /** @internal Bytes of this rank's windows and, with several hosts, of its network side. */
  get windowBytes(): number {
    return this.memory.windowBytes;
  }

  /** The tensors that received rows lie in now; they change when the window grows. */
  get outputBuffers(): OutputBuffers {
    const rows = this.outputSize.capacityRows;
    return {
      dispatchOutputBuf: this.view(this.config.tokenDtype, 'rows', [rows, this.config.hidden]),
      weightRecvBuf: this.view(this.config.weightDtype, 'weights', [rows]),
    };
  }

  /**
   * Collective, with the same number on every rank: makes room for that many rows at every rank. Keeps the buffers when
   * they suffice; else they are replaced, their contents lost and tensors over them closed. When there is no room, all
   * ranks get the same WL_MEMORY or WL_SHARED_MEMORY, and the context goes on with buffers of the old size.
   */
  async reallocateDispatchOutputBuf(dispatchRecvTokens: number, options: WaitOptions = {}): Promise<OutputBuffers> {
    if (!isWhole(dispatchRecvTokens, 0) || dispatchRecvTokens > this.config.maxRecvRows) {
      throw invalidArgument(
        'dispatchRecvTokens',
        dispatchRecvTokens,
        `0 to ${this.config.maxRecvRows}, the most that can arrive`,
      );
    }
    checkOptions(options, waitOptionNames, 'options of reallocateDispatchOutputBuf');
    const before = this.outputSize.capacityRows;
    if (dispatchRecvTokens > before) {
      const wait = startCall(options, this.group.settings.timeoutMs);
      try {
        await this.memory.allocate(grownRows(this.config, dispatchRecvTokens), wait);
      } catch (error) {
        // If a rank did not answer, no rank knows what the others have now, and waiting for them again is useless.
        if (isSharedByAll(error)) await this.#goBack(before, error, wait);
        throw error;
      }
    }
    return this.outputBuffers;
  }

  /** Makes room for the old number of rows again, after an attempt that every rank saw fail. */
  async #goBack(rows: number, cause: unknown, wait: CallWait): Promise<void> {
    try {
      await this.memory.allocate(rows, wait);
    } catch (error) {
      const { code, message, details, rank } = asWeftlineError(error);
      const text = `${message}; this was to restore the output, which could not grow: ${(cause as Error).message}`;
      throw new WeftlineError(code, text, { details, cause, ...(rank === undefined ? {} : { rank }) });
    }
  }

  /** @internal A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: OutputRegion, shape: readonly number[]): Tensor<D> {
    return this.memory.view(dtype, region, shape);
  }

  /** @internal Address, as this process maps it, of a received row of any rank of this host; for benchmarks. */
  peerRowAddress(rank: number, row: number): number {
    const index = this.group.topology.scaleUpIndexOf(rank);
    return this.memory.regionAddress('rows', index) + row * this.config.rowBytes;
  }

  /** Releases the memory here. Not collective; idempotent. */
  close(): Promise<void> {
    return this.memory.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

interface RoomOptions {
  readonly capacity: number;
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly rdmaBuffer: Tensor<'u8'> | undefined;
}

function checkRoom(config: EPConfig, { capacity, group, device, rdmaBuffer }: RoomOptions): void {
  const size = outputSize(config, initialRows(config, capacity), ranksOfHosts(group));
  const parts = [
    { name: 'windows for the output', bytes: size.bytes, isShared: true },
    { name: 'windows for counts', bytes: size.controlBytes, isShared: true },
  ];
  if (size.network !== undefined) {
    const { bytes } = size.network;
    if (rdmaBuffer !== undefined) checkRdmaBuffer(rdmaBuffer, { device, bytes });
    else parts.push({ name: 'network side', bytes, isShared: false });
  }
  checkMemoryBudget('EPAll2AllLayer', parts, { group, device });
}

/** Fails with WL_INVALID_ARGUMENT. */
function checkPinned(
  config: EPConfig,
  of: { readonly group: RankGroup; readonly device: CudaDevice; readonly rdmaBuffer: Tensor<'u8'> | undefined },
): void {
  const { group, device, rdmaBuffer } = of;
  const bytes = layerPinnedSize(config, group)?.bytes ?? 0;
  requirePinnedBytes(bytes, config.numRdmaBytes);
  if (rdmaBuffer !== undefined && bytes > 0) checkRdmaBuffer(rdmaBuffer, { device, bytes });
}

async function createMemory(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  config: EPConfig,
  wait: CallWait & { readonly rdmaBuffer: Tensor<'u8'> | undefined },
): Promise<CpuLayerMemory | CudaLayerMemory> {
  if (device.kind === 'cpu') return CpuLayerMemory.create(group, device, config, wait);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { CudaLayerMemory } = await import('./cuda/cuda-layer-memory.ts');
  return CudaLayerMemory.create(group, device, config, wait);
}
