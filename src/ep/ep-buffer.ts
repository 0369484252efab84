// EpBuffer: dispatch sends each token once to every rank that holds one of its experts; combine brings the sums back.
import { type DType, dtypes } from '../core/dtype.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import { Tensor } from '../device/tensor.ts';
import { TensorSet } from '../device/tensor-set.ts';
import { SymmetricWindow } from '../memory/symmetric-window.ts';
import type { WaitOptions } from '../world/store.ts';
import type { World } from '../world/world.ts';
import { fillAddressTables } from './address-table.ts';
import { agreeOn, requireOneHost } from './agree.ts';
import { bufferSize, type EpBufferConfig, type EpBufferSize, type EpRegion } from './buffer-size.ts';
import { CallGuard } from './call-guard.ts';
import { type Call, callWord, describeCall } from './calls.ts';
import { checkCombine, type CheckedCombine, type CombineArguments } from './combine-arguments.ts';
import {
  checkDispatch,
  checkHandle,
  type DispatchArguments,
  type DispatchPlanInput,
  type RowsLike,
} from './dispatch-arguments.ts';
import { DispatchHandle } from './dispatch-handle.ts';
import {
  computeLayout,
  type DispatchLayout,
  emptyLayout,
  type LayoutTensors,
  requireSameLayout,
} from './dispatch-layout.ts';
import { type EpTables, makeEpTables } from './ep-tables.ts';
import { CountExchange, type ExchangeHeader } from './exchange.ts';
import { planReceive, type ReceivePlan } from './receive-plan.ts';
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
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
  readonly #window: SymmetricWindow;
  readonly #exchange: CountExchange;
  readonly #tables: EpTables;
  readonly #guard = new CallGuard('EpBuffer');
  /** Dispatches that counted tokens; alike on all ranks, because they are collective. */
  #dispatches = 0;

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
    requireOneHost(world, 'EpBuffer');
    const full = { combineRows: 'separate' as const, ...config };
    const prepare = (): { readonly size: EpBufferSize; readonly tables: EpTables } => {
      const size = bufferSize(full, world.size);
      return { size, tables: makeEpTables(device, full, { ranks: world.size, size }) };
    };
    const release = ({ tables }: ReturnType<typeof prepare>): void => tables[Symbol.dispose]();
    const { size, tables } = await agreeOn(world, { what: 'EpBuffer', config: full, prepare, release }, options);
    try {
      const of = { world, device, name: 'ep', bytes: size.bytes, describeCall };
      const window = await SymmetricWindow.create({ ...options, ...of });
      return new EpBuffer({ world, device, config: full, size, window, tables });
    } catch (error) {
      tables[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(parts: EpBufferParts) {
    const { device, size, config, window, tables } = parts;
    this.world = parts.world;
    this.device = device;
    this.config = Object.freeze({ ...config });
    this.size = size;
    this.#window = window;
    this.#tables = tables;
    this.#exchange = new CountExchange(device, window, {
      offset: size.regions.exchange.offset,
      experts: config.numExperts,
    });
    fillAddressTables(tables.bases, window, size.regions);
  }

  /** Counts for dispatch. Local, no rank waits for another. `topkIdx` [T, K], -1 for no expert. The caller owns the result. */
  getDispatchLayout({ topkIdx }: { readonly topkIdx: Tensor<'i32' | 'i64'> }): DispatchLayout {
    this.#guard.requireOpen();
    const { device } = this;
    const choices = checkTensor('topkIdx', topkIdx, { device, dtype: ['i32', 'i64'], shape: ['T', 'K'] });
    const { shape } = this.#tables;
    const { set, made } = TensorSet.make(device, (tensors) => {
      const layout = emptyLayout(tensors, choices.shape[0] as number, shape);
      computeLayout(choices, layout, shape);
      return layout;
    });
    return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
  }

  /**
   * Collective. Sends row t of `x` once to every rank that `topkIdx[t]` names an expert of. Bad arguments fail with
   * WL_INVALID_ARGUMENT on this rank before it does anything; the others then wait for it.
   */
  async dispatch(args: DispatchArguments): Promise<DispatchResult> {
    return this.#guard.run('dispatch', async () => {
      this.#window.barrier.throwIfUnusable();
      const input = checkDispatch(args, this, this.#window);
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
    const { rows } = checkHandle(handle, this);
    return this.#view('bf16', 'combineRows', [rows, this.config.hidden]);
  }

  /** Collective. The unweighted sum of the rows that the ranks hold of each token, back at the token's rank. */
  async combine(args: CombineArguments): Promise<CombineResult> {
    return this.#guard.run('combine', async () => {
      const { barrier, storage } = this.#window;
      barrier.throwIfUnusable();
      const input = checkCombine(args, this, storage);
      const { handle, weights } = input;
      const tokens = handle.numTokens;
      const k = weights?.shape[1] ?? 0;
      const combinedX = input.out ?? this.device.empty('bf16', [tokens, this.config.hidden]);
      const combinedTopkWeights = weights && this.device.empty('f32', [tokens, k]);
      this.#stage(input.x, 'combineRows');
      if (weights) this.#stage(weights, 'combineWeights');
      const call: Call = { kind: 'combine', detail: k, handle: handle.sequence };
      await barrier.wait(callWord(call, 'opening'), args);
      this.#sumRows(combinedX, input);
      if (combinedTopkWeights) this.#sumWeights(combinedTopkWeights, handle);
      await barrier.wait(callWord(call, 'closing'), args);
      return { combinedX, combinedTopkWeights };
    });
  }

  /** Address in this rank's memory of a row of the receive (or combine) region of any rank; for benchmarks. */
  peerRowAddress(rank: number, row: number, region: 'rows' | 'combineRows' = 'rows'): number {
    return (this.#window.addresses[rank] as number) + this.size.regions[region].offset + row * this.config.hidden * 2;
  }

  /** Collective: returns when all ranks have called it. */
  barrier(options: WaitOptions = {}): Promise<void> {
    return this.#guard.run('barrier', () =>
      this.#window.barrier.wait(callWord({ kind: 'barrier' }, 'opening'), options),
    );
  }

  /** Releases the window here. Not collective; ranks that still wait for this one get WL_PEER_LOST. Idempotent. */
  [Symbol.asyncDispose](): Promise<void> {
    if (this.#guard.close()) {
      this.#tables[Symbol.dispose]();
      this.#window[Symbol.dispose]();
    }
    return Promise.resolve();
  }

  async #dispatchNew(input: DispatchPlanInput, options: WaitOptions): Promise<DispatchResult> {
    const { world, config } = this;
    const { barrier } = this.#window;
    const layout = this.#layoutOf(input);
    this.#exchange.publish(
      exchangeHeader(input),
      layout.numTokensPerRank.view(),
      layout.numTokensPerExpert.view().subarray(0, config.numExperts),
    );
    await barrier.wait(callWord({ kind: 'dispatch' }, 'opening'), options);
    this.#dispatches += 1;
    // All ranks compute the same from the same counts, so all fail here or none does.
    const { expertAlignment } = input;
    const plan = planReceive(this.#exchange.collect(), {
      rank: world.rank,
      experts: config.numExperts,
      expertAlignment,
    });
    return barrier.orAbort(async () => {
      const handle = this.#makeHandle(input, plan);
      this.#tables.nextRow.view().set(plan.firstRow);
      this.device.kernels.compactRows(
        layout.isTokenInRank.address,
        input.numTokens,
        world.size,
        this.#tables.nextRow.address,
        handle.rowTable.address,
      );
      this.#sendRows(input, handle);
      this.#sendChoices(input, handle);
      await barrier.wait(callWord({ kind: 'dispatch' }, 'closing'), options);
      return this.#receive(input, handle);
    });
  }

  async #dispatchCached(
    input: DispatchPlanInput,
    handle: DispatchHandle,
    options: WaitOptions,
  ): Promise<DispatchResult> {
    const { barrier } = this.#window;
    const { bytes } = dtypes[input.data.dtype];
    const call: Call = { kind: 'cached dispatch', detail: bytes, handle: handle.sequence };
    await barrier.wait(callWord(call, 'opening'), options);
    this.#sendRows(input, handle);
    await barrier.wait(callWord(call, 'closing'), options);
    return {
      recvX: this.#receivedRows(input, handle),
      recvTopkIdx: undefined,
      recvTopkWeights: undefined,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    };
  }

  /** Counts the choices; a layout that came with them must say the same. */
  #layoutOf({ topkIdx, layout, numTokens }: DispatchPlanInput): LayoutTensors {
    if (topkIdx === undefined) return layout as LayoutTensors;
    const counted = this.#tables.layout;
    computeLayout(topkIdx, counted, this.#tables.shape);
    if (layout !== undefined) requireSameLayout(layout, counted, numTokens * this.world.size);
    return counted;
  }

  #makeHandle(input: DispatchPlanInput, plan: ReceivePlan): DispatchHandle {
    const { device, world } = this;
    const rows = input.numWorstTokens || plan.numRecvTokens;
    return new DispatchHandle({
      owner: this,
      sequence: this.#dispatches,
      numTokens: input.numTokens,
      numRecvTokens: plan.numRecvTokens,
      rows,
      rowTable: device.empty('i32', [input.numTokens, world.size]),
      rankPrefixMatrix: plan.rankPrefixMatrix,
      recvSrcIdx: device.empty('i32', [rows]),
      numRecvTokensPerExpert: input.numWorstTokens ? [] : plan.numRecvTokensPerExpert,
    });
  }

  #sendRows({ data, scales, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { scatterRows } = this.device.kernels;
    const { bases } = this.#tables;
    const n = this.world.size;
    const rowBytes = this.config.hidden * dtypes[data.dtype].bytes;
    scatterRows(data.address, rowBytes, numTokens, n, rowTable.address, 0, bases.rows.address);
    if (scales) {
      const scaleBytes = (scales.shape[1] as number) * 4;
      scatterRows(scales.address, scaleBytes, numTokens, n, rowTable.address, 0, bases.scales.address);
    }
  }

  /** Token index, expert ids and weights of every row, straight to the receivers. */
  #sendChoices({ topkIdx, topkWeights, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { kernels } = this.device;
    const { bases } = this.#tables;
    const n = this.world.size;
    const table = rowTable.address;
    kernels.scatterTokenIndex(numTokens, n, table, 0, bases.sourceToken.address);
    if (!topkIdx) return;
    const k = topkIdx.shape[1] as number;
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = this.config.numExperts / n;
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, numTokens, k, n, perRank, table, bases.topkIdx.address);
    if (!topkWeights) return;
    const weights = topkWeights.address;
    const target = bases.topkWeights.address;
    kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, numTokens, k, n, perRank, table, target);
  }

  #sumRows(out: Tensor<'bf16'>, { handle, biases }: CheckedCombine): void {
    this.device.kernels.gatherSum(
      out.address,
      this.config.hidden * 2,
      handle.numTokens,
      this.world.size,
      handle.rowTable.address,
      0,
      this.#tables.bases.combineRows.address,
      0,
      biases[0]?.address ?? 0,
      biases[1]?.address ?? 0,
      this.#tables.sources.address,
    );
  }

  #sumWeights(out: Tensor<'f32'>, handle: DispatchHandle): void {
    this.device.kernels.gatherTopkWeight(
      out.address,
      handle.numTokens,
      out.shape[1] as number,
      this.world.size,
      handle.rowTable.address,
      this.#tables.bases.combineWeights.address,
    );
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
    const { offset, bytes } = this.size.regions[region];
    const tensor = new Tensor(storage, dtype, shape, address + offset - storage.address);
    if (tensor.bytes <= bytes) return tensor;
    throw new WeftlineError('WL_INTERNAL', `A ${dtype} [${shape.join(', ')}] exceeds the ${bytes} bytes of ${region}`);
  }
}

interface EpBufferParts {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: Required<EpBufferConfig>;
  readonly size: EpBufferSize;
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
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
