// The CPU's way of an EpBuffer call: tables in WebAssembly memory, kernels that write into the windows, barriers between.
import { elementFormats } from '../../../abi/element-formats.ts';
import { type CallWait, remaining, sooner } from '../../../core/deadline.ts';
import { type DType, dtypes } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/tensor-set.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { fillAddressTables } from '../../../collective/address-table.ts';
import type { EpRegion } from '../buffer-size.ts';
import { type Call, callWord } from '../../../collective/calls.ts';
import type { CheckedCombine } from '../combine-arguments.ts';
import type { DispatchPlanInput, RowsLike } from '../dispatch-arguments.ts';
import { DispatchHandle } from '../dispatch-handle.ts';
import {
  computeLayout,
  type DispatchLayout,
  emptyLayout,
  type LayoutTensors,
  requireConsistentLayout,
  requireSameLayout,
} from '../dispatch-layout.ts';
import type { EpCallOptions, EpEngine } from '../engine.ts';
import type { MemoryRange } from '../../../device/host-access.ts';
import type { CombineResult, DispatchResult } from '../ep-results.ts';
import type { EpTables } from '../ep-tables.ts';
import { hostsOf } from '../../across-hosts/hosts-of.ts';
import { CountExchange, type ExchangeHeader } from '../../../collective/exchange.ts';
import { type HostNetwork, throwIfUnusable } from '../../../collective/network/host-network.ts';
import { eventAtOnce } from '../../../collective/overlap.ts';
import { planReceive, type ReceivePlan } from '../receive-plan.ts';
import type { CpuBufferNetwork } from './cpu-buffer-network.ts';
import type { EpScope } from '../scope.ts';

/** What an engine is made of, and owns. */
export interface CpuEngineParts {
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
  /** Of a group on several hosts. */
  readonly network: CpuBufferNetwork | undefined;
}

export class CpuEpEngine implements EpEngine {
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
  readonly #scope: EpScope<CpuDevice>;
  readonly #device: CpuDevice;
  readonly #exchange: CountExchange;
  readonly #network: CpuBufferNetwork | undefined;
  /** Dispatches that counted tokens; alike on all ranks, because they are collective. */
  #dispatches = 0;

  constructor(scope: EpScope<CpuDevice>, { window, tables, network }: CpuEngineParts) {
    this.window = window;
    this.tables = tables;
    this.#scope = scope;
    this.#device = scope.device;
    this.#network = network;
    const { group } = scope;
    this.#exchange = new CountExchange(scope.device, window, {
      offset: scope.size.regions.exchange.offset,
      group,
      ranks: group.size,
      experts: scope.config.numExperts,
      hosts: hostsOf(group),
    });
    fillAddressTables(tables.bases, { window, group }, scope.size.regions);
  }

  get hostNetwork(): HostNetwork | undefined {
    return this.#network?.exchange.network;
  }

  get mapped(): MemoryRange {
    return this.window.storage;
  }

  throwIfUnusable(): void {
    throwIfUnusable(this.window.barrier, this.hostNetwork);
  }

  getDispatchLayout(topkIdx: Tensor<'i32' | 'i64'>): DispatchLayout {
    const { shape } = this.tables;
    const { set, made } = TensorSet.make(this.#device, (tensors) => {
      const layout = emptyLayout(tensors, topkIdx.shape[0]!, shape);
      computeLayout(topkIdx, layout, shape);
      return layout;
    });
    return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
  }

  regionAddress(region: EpRegion, index = this.window.index): number {
    return this.window.addresses[index]! + this.#scope.size.regions[region].offset;
  }

  barrier(wait: CallWait): Promise<void> {
    return this.#untilFailure(async () => {
      await this.#begin({ kind: 'barrier' }, wait);
      await this.#network?.exchange.settle(wait);
    });
  }

  async dispatch(input: DispatchPlanInput, options: EpCallOptions): Promise<DispatchResult> {
    if (options.previousEvent !== undefined) await options.previousEvent.wait(remaining(options));
    const { group, config } = this.#scope;
    traceBegin('ep.dispatch.counts');
    const layout = this.#layoutOf(input);
    const perHost = this.#network?.countHosts(layout, input.numTokens);
    this.#exchange.publish(exchangeHeader(input), {
      perRank: layout.numTokensPerRank.view(),
      perExpert: layout.numTokensPerExpert.view().subarray(0, config.numExperts),
      ...(perHost && { perHost }),
    });
    await this.#begin({ kind: 'dispatch' }, options, true);
    this.#dispatches += 1;
    // All ranks compute the same from the same counts, so all fail here or none does.
    const { expertAlignment } = input;
    const counts = this.#exchange.collect();
    const plan = planReceive(counts, {
      rank: group.rank,
      ranks: group.ranks,
      experts: config.numExperts,
      expertAlignment,
    });
    traceEnd('ep.dispatch.counts');
    return this.#untilFailure(async () => {
      const making = this.#device.allocating(() => this.#makeHandle(input, { plan, layout, perHost: counts.perHost }));
      const handle = making instanceof Promise ? await making : making;
      traceBegin('ep.dispatch.rows');
      this.#sendChoices(input, handle);
      await this.#moveRows({ input, handle, isCached: false }, options);
      traceEnd('ep.dispatch.rows');
      traceBegin('ep.closing');
      await this.window.barrier.wait(callWord({ kind: 'dispatch' }, 'closing'), options);
      traceEnd('ep.closing');
      return { ...this.#receive(input, handle, plan.numRecvTokens), event: eventAtOnce(options) };
    });
  }

  async dispatchCached(
    input: DispatchPlanInput,
    handle: DispatchHandle,
    options: EpCallOptions,
  ): Promise<DispatchResult> {
    if (options.previousEvent !== undefined) await options.previousEvent.wait(remaining(options));
    const { bytes } = dtypes[input.data.dtype];
    const call: Call = { kind: 'cached dispatch', detail: bytes, handle: handle.sequence };
    await this.#untilFailure(async () => {
      await this.#begin(call, options);
      traceBegin('ep.dispatch.rows');
      await this.#moveRows({ input, handle, isCached: true }, options);
      traceEnd('ep.dispatch.rows');
      traceBegin('ep.closing');
      await this.window.barrier.wait(callWord(call, 'closing'), options);
      traceEnd('ep.closing');
    });
    return {
      recvX: this.#receivedRows(input, handle),
      recvTopkIdx: undefined,
      recvTopkWeights: undefined,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
      event: eventAtOnce(options),
    };
  }

  async combine(input: CheckedCombine, options: EpCallOptions): Promise<CombineResult> {
    if (options.previousEvent !== undefined) await options.previousEvent.wait(remaining(options));
    const { handle, weights } = input;
    const tokens = handle.numTokens;
    const k = weights?.shape[1] ?? 0;
    const making = this.#device.allocating(() => ({
      combinedX: input.out ?? this.#device.empty('bf16', [tokens, this.#scope.config.hidden]),
      combinedTopkWeights: weights && this.#device.empty('f32', [tokens, k]),
    }));
    const { combinedX, combinedTopkWeights } = making instanceof Promise ? await making : making;
    this.#stage(input.x, 'combineRows');
    if (weights) this.#stage(weights, 'combineWeights');
    const call: Call = { kind: 'combine', detail: k, handle: handle.sequence };
    await this.#untilFailure(async () => {
      this.#exchange.beginCall();
      this.#network?.exchange.announce(this.#exchange, call);
      await this.window.barrier.wait(callWord(call, 'opening'), options);
      traceBegin('ep.combine.rows');
      if (this.#network === undefined) {
        this.#sumRows(combinedX, input);
        if (combinedTopkWeights) this.#sumWeights(combinedTopkWeights, handle);
      } else {
        const out = { rows: combinedX, weights: combinedTopkWeights };
        await this.#network.combine(input, out, { ...options, counts: this.#exchange });
      }
      traceEnd('ep.combine.rows');
      traceBegin('ep.closing');
      await this.window.barrier.wait(callWord(call, 'closing'), options);
      traceEnd('ep.closing');
    });
    return { combinedX, combinedTopkWeights, event: eventAtOnce(options) };
  }

  /** The window is unmapped: tensors over it become invalid. */
  async close(): Promise<void> {
    // Its engines write into the window.
    await this.#network?.close();
    this.window[Symbol.dispose]();
    this.tables[Symbol.dispose]();
  }

  /** Behind it, every rank of the group has begun the call, and this host has the records of all. */
  async #begin(call: Call, options: CallWait, withCounts = false): Promise<void> {
    const exchange = this.#network?.exchange;
    await this.#untilFailure(async () => {
      if (!withCounts) this.#exchange.beginCall();
      exchange?.announce(this.#exchange, call, withCounts);
      await exchange?.meet(this.#exchange, sooner(options));
      await this.window.barrier.wait(callWord(call, 'opening'), options);
    });
  }

  /** A part of a call whose failure ends the buffer's use for all ranks; they hear of it at once. */
  async #untilFailure<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await this.window.barrier.orAbort(work);
    } catch (error) {
      this.#network?.exchange.network.giveUp(error);
      throw error;
    }
  }

  async #moveRows(
    of: { readonly input: DispatchPlanInput; readonly handle: DispatchHandle; readonly isCached: boolean },
    options: CallWait,
  ): Promise<void> {
    const { input, handle } = of;
    if (this.#network === undefined) this.#sendRows(input, handle, 0, input.numTokens);
    else await this.#network.dispatch(of, (first, count) => this.#sendRows(input, handle, first, count), options);
  }

  /** Counts the choices; a layout that came with them must say the same. */
  #layoutOf({ topkIdx, layout, numTokens }: DispatchPlanInput): LayoutTensors {
    if (topkIdx === undefined) {
      requireConsistentLayout(layout as LayoutTensors, this.#scope.group.size);
      return layout as LayoutTensors;
    }
    const counted = this.tables.layout;
    computeLayout(topkIdx, counted, this.tables.shape);
    if (layout !== undefined) requireSameLayout(layout, counted, numTokens * this.#scope.group.size);
    return counted;
  }

  #makeHandle(
    input: DispatchPlanInput,
    { plan, layout, perHost }: { plan: ReceivePlan; layout: LayoutTensors; perHost: Int32Array },
  ): DispatchHandle {
    const { group } = this.#scope;
    const device = this.#device;
    const rows = input.numWorstTokens || plan.numRecvTokens;
    const rowTable = device.empty('i32', [input.numTokens, group.size]);
    this.tables.nextRow.view().set(plan.firstRow);
    const { address } = this.tables.nextRow;
    device.kernels.compactRows(layout.isTokenInRank.address, input.numTokens, group.size, address, rowTable.address);
    return new DispatchHandle({
      owner: this.#scope,
      sequence: this.#dispatches,
      numTokens: input.numTokens,
      numRecvTokens: plan.numRecvTokens,
      rows,
      rowTable,
      routed: this.#network?.route(rowTable, input.numTokens, perHost),
      rankPrefixMatrix: plan.rankPrefixMatrix,
      recvSrcIdx: device.empty('i32', [rows]),
      numRecvTokensPerExpert: input.numWorstTokens ? [] : plan.numRecvTokensPerExpert,
    });
  }

  /** To the ranks of this host. */
  #sendRows({ data, scales }: DispatchPlanInput, { rowTable }: DispatchHandle, first: number, count: number): void {
    const { scatterRows } = this.#device.kernels;
    const { bases } = this.tables;
    const n = this.#scope.group.size;
    const rowBytes = this.#scope.config.hidden * dtypes[data.dtype].bytes;
    const table = rowTable.address + first * n * 4;
    scatterRows(data.address + first * rowBytes, rowBytes, count, n, table, 0, bases.rows.address);
    if (scales) {
      const scaleBytes = scales.shape[1]! * 4;
      scatterRows(scales.address + first * scaleBytes, scaleBytes, count, n, table, 0, bases.scales.address);
    }
  }

  /** Token index, expert ids and weights of every row, straight to the receivers. */
  #sendChoices({ topkIdx, topkWeights, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { kernels } = this.#device;
    const { bases } = this.tables;
    const n = this.#scope.group.size;
    const table = rowTable.address;
    kernels.scatterTokenIndex(numTokens, n, table, 0, bases.sourceToken.address);
    if (!topkIdx) return;
    const k = topkIdx.shape[1]!;
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = this.#scope.config.numExperts / n;
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, numTokens, k, n, perRank, table, bases.topkIdx.address, 0);
    if (!topkWeights) return;
    const weights = topkWeights.address;
    const target = bases.topkWeights.address;
    kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, numTokens, k, n, perRank, table, target, 0);
  }

  #sumRows(out: Tensor<'bf16'>, { handle, biases }: CheckedCombine): void {
    this.#device.kernels.gatherSum(
      out.address,
      this.#scope.config.hidden * 2,
      handle.numTokens,
      this.#scope.group.size,
      handle.rowTable.address,
      0,
      this.tables.bases.combineRows.address,
      0,
      biases[0]?.address ?? 0,
      biases[1]?.address ?? 0,
      this.tables.sources.address,
      elementFormats.bf16,
    );
  }

  #sumWeights(out: Tensor<'f32'>, handle: DispatchHandle): void {
    this.#device.kernels.gatherTopkWeight(
      out.address,
      handle.numTokens,
      out.shape[1]!,
      this.#scope.group.size,
      handle.rowTable.address,
      this.tables.bases.combineWeights.address,
    );
  }

  #receive(input: DispatchPlanInput, handle: DispatchHandle, numRecvTokens: number): Omit<DispatchResult, 'event'> {
    const { rows } = handle;
    const source = this.view('i32', 'sourceToken', [rows]).view();
    source.fill(-1, numRecvTokens);
    handle.recvSrcIdx.view().set(source);
    const k = input.topkIdx?.shape[1] ?? 0;
    const recvTopkIdx = input.topkIdx && this.view(input.topkIdx.dtype, 'topkIdx', [rows, k]);
    const recvTopkWeights = input.topkWeights && this.view('f32', 'topkWeights', [rows, k]);
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
    const received = this.view(data.dtype, 'rows', [rows, this.#scope.config.hidden]);
    if (!scales) return received as Tensor<'bf16'>;
    return {
      data: received as Tensor<'fp8e4m3'>,
      scales: this.view('f32', 'scales', [rows, scales.shape[1]!]),
    };
  }

  /** Brings a tensor to where the peers read it, unless it is there already. */
  #stage(tensor: Tensor, region: 'combineRows' | 'combineWeights'): void {
    const target = this.regionAddress(region);
    if (tensor.address !== target) this.#device.kernels.copyBytes(target, tensor.address, tensor.bytes);
  }

  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: EpRegion, shape: readonly number[]): Tensor<D> {
    const { address, storage } = this.window;
    const { offset, bytes } = this.#scope.size.regions[region];
    const tensor = new Tensor(storage, dtype, shape, address + offset - storage.address);
    if (tensor.bytes <= bytes) return tensor;
    throw new WeftlineError('WL_INTERNAL', `A ${dtype} [${shape.join(', ')}] exceeds the ${bytes} bytes of ${region}`);
  }
}

function exchangeHeader(input: DispatchPlanInput): ExchangeHeader {
  return {
    topk: input.topkIdx?.shape[1] ?? 0,
    rowBytes: dtypes[input.data.dtype].bytes,
    scaleBytes: input.scales ? input.scales.shape[1]! * 4 : 0,
    indexBytes: input.topkIdx ? dtypes[input.topkIdx.dtype].bytes : 0,
    weightBytes: input.topkWeights ? 4 : 0,
    scattered: 0,
    numTokens: input.numTokens,
    rowBound: input.numWorstTokens,
  };
}
