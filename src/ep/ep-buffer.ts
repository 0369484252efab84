// EpBuffer: dispatch sends each token once to every rank that holds one of its experts; combine brings the sums back.
import { type DType, dtypes } from '../core/dtype.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import { Tensor } from '../device/tensor.ts';
import { SymmetricWindow } from '../memory/symmetric-window.ts';
import type { WaitOptions } from '../world/store.ts';
import type { World } from '../world/world.ts';
import { addressTable } from './address-table.ts';
import { agreeOnConfig, requireOneHost } from './agree.ts';
import { bufferSize, type EpBufferConfig, type EpBufferSize, type EpRegion } from './buffer-size.ts';
import { CallGuard } from './call-guard.ts';
import { callWord, describeCall } from './calls.ts';
import { checkCombine, type CombineArguments } from './combine-arguments.ts';
import { checkDispatch, type DispatchArguments, type DispatchPlanInput, type RowsLike } from './dispatch-arguments.ts';
import { DispatchHandle } from './dispatch-handle.ts';
import { computeLayout, type DispatchLayout, emptyLayout, type LayoutShape } from './dispatch-layout.ts';
import { CountExchange, type ExchangeHeader } from './exchange.ts';
import { planReceive } from './receive-plan.ts';
import { checkTensor } from './tensor-check.ts';

/**
 * All tensors but the handle's lie in this rank's window: they stay valid until the next dispatch on this buffer and
 * must not be disposed.
 */
export interface DispatchResult {
  /** [recv, H], ordered by source rank, then token index; in the form of `x`. With numWorstTokens [numWorstTokens, H]. */
  readonly recvX: RowsLike;
  /** [recv, K] local expert ids, -1 for experts of other ranks; dtype of topkIdx. */
  readonly recvTopkIdx: Tensor<'i32' | 'i64'> | undefined;
  /** f32 [recv, K], 0 where recvTopkIdx is -1. */
  readonly recvTopkWeights: Tensor<'f32'> | undefined;
  /** Choices per local expert, rounded up to expertAlignment (the count only, no rows are added). */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly handle: DispatchHandle;
}

/** Owned by the caller. */
export interface CombineResult {
  /** bf16 [T, H]: bias + the rows of all ranks that held the token, in rank order, summed in f32, rounded once. */
  readonly combinedX: Tensor<'bf16'>;
  /** f32 [T, K]: the sum of the ranks' weight rows. */
  readonly combinedTopkWeights: Tensor<'f32'> | undefined;
}

export class EpBuffer implements AsyncDisposable {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: Readonly<EpBufferConfig>;
  readonly size: EpBufferSize;
  readonly #window: SymmetricWindow;
  readonly #exchange: CountExchange;
  readonly #shape: LayoutShape;
  /** The layout of the present dispatch, for callers who pass none. */
  readonly #layout: DispatchLayout;
  readonly #bases: Readonly<Record<EpRegion, Tensor<'i32'>>>;
  readonly #nextRow: Tensor<'i32'>;
  readonly #scratch: Tensor<'i32'>;
  readonly #guard = new CallGuard('EpBuffer');

  /**
   * Collective over the world, whose ranks must all be on one host. Fails on every rank with the same error:
   * WL_INVALID_ARGUMENT, WL_CONFIG_MISMATCH, WL_MEMORY, WL_SHARED_MEMORY or WL_TIMEOUT.
   */
  static async create(
    world: World,
    device: CpuDevice,
    config: EpBufferConfig,
    options: WaitOptions = {},
  ): Promise<EpBuffer> {
    const size = bufferSize(config, world.size);
    requireOneHost(world, 'EpBuffer');
    await agreeOnConfig(world, 'EpBuffer', { ...config }, options);
    const window = await SymmetricWindow.create({
      world,
      device,
      name: 'ep',
      bytes: size.bytes,
      describeCall,
      ...options,
    });
    return new EpBuffer({ world, device, config, size, window });
  }

  private constructor(parts: {
    world: World;
    device: CpuDevice;
    config: EpBufferConfig;
    size: EpBufferSize;
    window: SymmetricWindow;
  }) {
    this.world = parts.world;
    this.device = parts.device;
    this.config = Object.freeze({ ...parts.config });
    this.size = parts.size;
    this.#window = parts.window;
    const { device, size, config } = parts;
    this.#shape = {
      ranks: this.world.size,
      experts: config.numExperts,
      dropped: -1,
      scratch: device.empty('i32', [config.numExperts]),
    };
    this.#exchange = new CountExchange(device, parts.window, {
      offset: size.regions.exchange.offset,
      experts: config.numExperts,
    });
    this.#layout = emptyLayout(device, config.maxTokensPerRank, this.#shape);
    const bases = Object.entries(size.regions).map(([name, { offset }]) => [
      name,
      addressTable(device, parts.window, offset),
    ]);
    this.#bases = Object.fromEntries(bases) as Record<EpRegion, Tensor<'i32'>>;
    this.#nextRow = device.empty('i32', [this.world.size]);
    this.#scratch = device.empty('i32', [this.world.size + 2]);
  }

  /** Counts for dispatch. Local, no rank waits for another. `topkIdx` [T, K], -1 for no expert. The caller owns the result. */
  getDispatchLayout({ topkIdx }: { readonly topkIdx: Tensor<'i32' | 'i64'> }): DispatchLayout {
    this.#guard.requireOpen();
    const { device } = this;
    const choices = checkTensor('topkIdx', topkIdx, { device, dtype: ['i32', 'i64'], shape: ['T', 'K'] });
    const layout = emptyLayout(device, choices.shape[0] as number, this.#shape);
    try {
      computeLayout(choices, layout, this.#shape);
    } catch (error) {
      layout[Symbol.dispose]();
      throw error;
    }
    return layout;
  }

  /**
   * Collective. Sends row t of `x` once to every rank that `topkIdx[t]` names an expert of. Bad arguments fail with
   * WL_INVALID_ARGUMENT on this rank before it does anything; the others then wait for it.
   */
  async dispatch(args: DispatchArguments): Promise<DispatchResult> {
    return this.#guard.run('dispatch', async () => {
      const input = checkDispatch(args, this, this.#receiveRegion());
      return input.handle === undefined
        ? this.#dispatchNew(input, args)
        : this.#dispatchCached(input, input.handle, args);
    });
  }

  /**
   * Where expert output can be written so that combine() need not copy it: bf16 [rows, H] in this rank's window, valid
   * until combine() returns. With combineRows 'shared' it is the memory of recvX.
   */
  combineInput(handle: DispatchHandle): Tensor<'bf16'> {
    this.#guard.requireOpen();
    return this.#view('bf16', 'combineRows', [handle.rows, this.config.hidden]);
  }

  /** Collective. The unweighted sum of the rows that the ranks hold of each token, back at the token's rank. */
  async combine(args: CombineArguments): Promise<CombineResult> {
    return this.#guard.run('combine', async () => {
      const { device, config } = this;
      const { x, handle, weights, biases, out } = checkCombine(args, this, this.#window.storage);
      const k = weights?.shape[1] ?? 0;
      const combinedX = out ?? device.empty('bf16', [handle.numTokens, config.hidden]);
      const combinedTopkWeights = weights && device.empty('f32', [handle.numTokens, k]);
      this.#stage(x, 'combineRows');
      if (weights) this.#stage(weights, 'combineWeights');
      await this.#window.barrier.wait(callWord('combine', 'opening', k), args);
      const { kernels } = device;
      kernels.gatherSum(
        combinedX.address,
        config.hidden * 2,
        handle.numTokens,
        this.world.size,
        handle.rowTable.address,
        0,
        this.#bases.combineRows.address,
        0,
        biases[0]?.address ?? 0,
        biases[1]?.address ?? 0,
        this.#scratch.address,
      );
      if (combinedTopkWeights) {
        kernels.gatherTopkWeight(
          combinedTopkWeights.address,
          handle.numTokens,
          k,
          this.world.size,
          handle.rowTable.address,
          this.#bases.combineWeights.address,
        );
      }
      await this.#window.barrier.wait(callWord('combine', 'closing', k), args);
      return { combinedX, combinedTopkWeights };
    });
  }

  /** Address in this rank's memory of a row of the receive (or combine) region of any rank; for benchmarks. */
  peerRowAddress(rank: number, row: number, region: 'rows' | 'combineRows' = 'rows'): number {
    return (this.#window.addresses[rank] as number) + this.size.regions[region].offset + row * this.config.hidden * 2;
  }

  /** Collective: returns when all ranks have called it. */
  barrier(options: WaitOptions = {}): Promise<void> {
    return this.#guard.run('barrier', () => this.#window.barrier.wait(callWord('barrier', 'opening'), options));
  }

  /** Releases the window here. Not collective; ranks that still wait for this one get WL_PEER_LOST. Idempotent. */
  [Symbol.asyncDispose](): Promise<void> {
    if (this.#guard.close()) {
      this.#layout[Symbol.dispose]();
      this.#shape.scratch.dispose();
      for (const table of new Set(Object.values(this.#bases))) table.dispose();
      this.#nextRow.dispose();
      this.#scratch.dispose();
      this.#window[Symbol.dispose]();
    }
    return Promise.resolve();
  }

  async #dispatchNew(input: DispatchPlanInput, options: WaitOptions): Promise<DispatchResult> {
    const { world, device, config } = this;
    const layout = input.layout ?? this.#layout;
    if (input.layout === undefined && input.topkIdx) computeLayout(input.topkIdx, layout, this.#shape);
    const perRank = layout.numTokensPerRank.view();
    this.#exchange.publish(exchangeHeader(input), perRank, layout.numTokensPerExpert.view());
    await this.#window.barrier.wait(callWord('dispatch', 'opening'), options);
    const plan = planReceive(this.#exchange.collect(), {
      rank: world.rank,
      experts: config.numExperts,
      expertAlignment: input.expertAlignment,
    });

    const rows = input.numWorstTokens || plan.numRecvTokens;
    const handle = new DispatchHandle({
      owner: this,
      numTokens: input.numTokens,
      numRecvTokens: plan.numRecvTokens,
      rows,
      rowTable: device.empty('i32', [input.numTokens, world.size]),
      rankPrefixMatrix: plan.rankPrefixMatrix,
      recvSrcIdx: device.empty('i32', [rows]),
      numRecvTokensPerExpert: input.numWorstTokens ? [] : plan.numRecvTokensPerExpert,
    });
    this.#nextRow.view().set(plan.firstRow);
    const membership = layout.isTokenInRank.address;
    device.kernels.compactRows(membership, input.numTokens, world.size, this.#nextRow.address, handle.rowTable.address);
    this.#sendRows(input, handle);
    this.#sendChoices(input, handle);
    await this.#window.barrier.wait(callWord('dispatch', 'closing'), options);
    return this.#receive(input, handle);
  }

  async #dispatchCached(
    input: DispatchPlanInput,
    handle: DispatchHandle,
    options: WaitOptions,
  ): Promise<DispatchResult> {
    const { bytes } = dtypes[input.data.dtype];
    await this.#window.barrier.wait(callWord('cached dispatch', 'opening', bytes), options);
    this.#sendRows(input, handle);
    await this.#window.barrier.wait(callWord('cached dispatch', 'closing', bytes), options);
    return {
      recvX: this.#receivedRows(input, handle),
      recvTopkIdx: undefined,
      recvTopkWeights: undefined,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    };
  }

  #sendRows({ data, scales, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { scatterRows } = this.device.kernels;
    const n = this.world.size;
    const rowBytes = this.config.hidden * dtypes[data.dtype].bytes;
    scatterRows(data.address, rowBytes, numTokens, n, rowTable.address, 0, this.#bases.rows.address);
    if (scales) {
      const scaleBytes = (scales.shape[1] as number) * 4;
      scatterRows(scales.address, scaleBytes, numTokens, n, rowTable.address, 0, this.#bases.scales.address);
    }
  }

  /** Token index, expert ids and weights of every row, straight to the receivers. */
  #sendChoices({ topkIdx, topkWeights, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { kernels } = this.device;
    const n = this.world.size;
    const table = rowTable.address;
    kernels.scatterTokenIndex(0, numTokens, n, table, 0, this.#bases.sourceToken.address);
    if (!topkIdx) return;
    const k = topkIdx.shape[1] as number;
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = this.config.numExperts / n;
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, numTokens, k, n, perRank, table, this.#bases.topkIdx.address);
    if (!topkWeights) return;
    const weights = topkWeights.address;
    const target = this.#bases.topkWeights.address;
    kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, numTokens, k, n, perRank, table, target);
  }

  #receive(input: DispatchPlanInput, handle: DispatchHandle): DispatchResult {
    const { rows, numRecvTokens } = handle;
    const source = this.#view('i32', 'sourceToken', [rows]).view();
    source.fill(-1, numRecvTokens);
    handle.recvSrcIdx.view().set(source);
    const k = input.topkIdx?.shape[1] ?? 0;
    const recvTopkIdx = input.topkIdx && this.#view(input.topkIdx.dtype, 'topkIdx', [rows, k]);
    const recvTopkWeights = input.topkWeights && this.#view('f32', 'topkWeights', [rows, k]);
    // The rows beyond the received ones exist only with numWorstTokens.
    const tail = recvTopkIdx?.view().subarray(numRecvTokens * k);
    if (tail instanceof BigInt64Array) tail.fill(-1n);
    else tail?.fill(-1);
    recvTopkWeights?.view().fill(0, numRecvTokens * k);
    return {
      recvX: this.#receivedRows(input, handle),
      recvTopkIdx,
      recvTopkWeights,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    };
  }

  #receivedRows({ data, scales }: DispatchPlanInput, { rows }: DispatchHandle): RowsLike {
    const received = this.#view(data.dtype, 'rows', [rows, this.config.hidden]);
    if (!scales) return received as Tensor<'bf16'>;
    return {
      data: received as Tensor<'fp8e4m3'>,
      scales: this.#view('f32', 'scales', [rows, scales.shape[1] as number]),
    };
  }

  /** Brings a tensor to where the peers read it, unless it is there already. */
  #stage(tensor: Tensor, region: 'combineRows' | 'combineWeights'): void {
    const target = this.#window.address + this.size.regions[region].offset;
    if (tensor.address !== target) this.device.kernels.copyBytes(target, tensor.address, tensor.bytes);
  }

  #view<D extends DType>(dtype: D, region: EpRegion, shape: readonly number[]): Tensor<D> {
    const { address, storage } = this.#window;
    return new Tensor(storage, dtype, shape, address + this.size.regions[region].offset - storage.address);
  }

  #receiveRegion(): { readonly address: number; readonly bytes: number } {
    const { offset, bytes } = this.size.regions.rows;
    return { address: this.#window.address + offset, bytes };
  }
}

function exchangeHeader(input: DispatchPlanInput): ExchangeHeader {
  return {
    topk: input.topkIdx?.shape[1] ?? 0,
    rowBytes: dtypes[input.data.dtype].bytes,
    scaleBytes: input.scales ? (input.scales.shape[1] as number) * 4 : 0,
    indexBytes: input.topkIdx ? dtypes[input.topkIdx.dtype].bytes : 0,
    weightBytes: input.topkWeights ? 4 : 0,
    scattered: 0,
    numTokens: input.numTokens,
    rowBound: input.numWorstTokens,
  };
}
