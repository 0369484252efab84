// The CPU's way of an EpBuffer call: tables in WebAssembly memory, kernels that write into the windows, barriers between.
import { alignUp } from '../../../abi/layout.ts';
import { type CallWait, remaining, sooner } from '../../../core/deadline.ts';
import { dtypes } from '../../../core/dtype.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { checkRdmaBuffer, countedHosts, ranksOfHosts } from '../../across-hosts/network-size.ts';
import {
  bufferSize,
  type EpBufferConfig,
  type EpBufferOptions,
  type EpBufferSize,
  type EpRegion,
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
import { BufferRows, type CombineSums, type EpTables, makeEpTables } from './buffer-rows.ts';
import type { CpuBufferNetwork } from './cpu-buffer-network.ts';
import { DispatchHandle } from '../dispatch-handle.ts';
import {
  capacityError,
  checkCounts,
  compareLayouts,
  computeLayout,
  type DispatchLayout,
  emptyLayout,
  type LayoutTensors,
  type Refusal,
  throwIfRefused,
} from '../dispatch-layout.ts';
import { fillAddressTables } from '../../../group/address-table.ts';
import { agreeOn } from '../../../group/agree.ts';
import { type Call, callWord, describeCall } from '../../../group/calls.ts';
import { CountExchange, type ExchangeCounts, type ExchangeHeader } from '../../../group/exchange.ts';
import type { HostNetwork } from '../../../group/network/host-network.ts';
import { eventAtOnce } from '../../../group/overlap.ts';
import { PeerMemory } from '../../../group/peer-memory.ts';
import { checkMemoryBudget } from '../../../windows/memory-budget.ts';
import { PlacedRegions } from '../../../windows/region-layout.ts';
import { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';

// Finds out from everyone's counts where this rank's rows start at each destination, and how many it will receive.

interface ReceivePlan {
  readonly numRecvTokens: number;
  /** Choices of each local expert by all ranks, rounded up to the alignment. */
  readonly numRecvTokensPerExpert: readonly number[];
  /** [s * n + d]: rows that ranks 0..s together send to rank d. */
  readonly rankPrefixMatrix: Int32Array;
}

interface ReceivePlanOptions {
  readonly exchange: CountExchange;
  readonly tables: EpTables;
  readonly rank: number;
  /** World ranks, for errors. */
  readonly ranks: readonly number[];
  readonly expertAlignment: number;
}

/**
 * Behind the barrier of the exchange. Leaves in `tables.nextRow` the row at each rank where this rank's tokens begin. Every
 * rank fails with the same WL_CONFIG_MISMATCH if they disagree, WL_CAPACITY if one would get more rows than its own bound.
 */
function planReceive(device: CpuDevice, options: ReceivePlanOptions): ReceivePlan {
  const { exchange, tables, rank, ranks, expertAlignment } = options;
  const { records, rankPrefix, perLocalExpert, nextRow, shape } = tables;
  const n = ranks.length;
  const exceeded = device.kernels.planReceive(
    records.address + exchange.parity * n * 4,
    n,
    shape.experts,
    rank,
    rankPrefix.address,
    nextRow.address,
    perLocalExpert.address,
  );
  // A copy that is not shared.
  const rankPrefixMatrix = rankPrefix.view().slice();
  if (exceeded !== GOOD) {
    exchange.requireAgreement();
    const rows = rankPrefixMatrix[(n - 1) * n + exceeded]!;
    throw capacityError(ranks[exceeded]!, { rows, bound: exchange.rowBoundOf(exceeded) });
  }
  return {
    numRecvTokens: rankPrefixMatrix[(n - 1) * n + rank]!,
    numRecvTokensPerExpert: alignedCounts(perLocalExpert.view(), expertAlignment),
    rankPrefixMatrix,
  };
}

/** Hot path. */
function alignedCounts(counts: Int32Array, alignment: number): readonly number[] {
  const aligned: number[] = [];
  for (let expert = 0; expert < counts.length; expert++) aligned.push(alignUp(counts[expert]!, alignment));
  return aligned;
}

/** What the kernel returns if all is well. */
const GOOD = -1;

/** What an engine is made of, and owns. */
interface CpuEngineParts {
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
  /** The way to the other hosts of a group on several. */
  readonly network: CpuBufferNetwork | undefined;
  /** Access to the tensors of peers, in a group on one host whose ranks can read them. */
  readonly memory: PeerMemory | undefined;
}

const endClosing = (): void => traceEnd('ep.closing');

class CpuEpEngine implements EpEngine {
  readonly window: SymmetricWindow;
  readonly regions: PlacedRegions<EpRegion>;
  readonly tables: EpTables;
  readonly #scope: EpScope<CpuDevice>;
  readonly #device: CpuDevice;
  readonly #exchange: CountExchange;
  readonly #network: CpuBufferNetwork | undefined;
  readonly #rows: BufferRows;
  /** Views of the counts of `tables.layout`, made once. */
  readonly #counted: ExchangeCounts;
  /** Dispatches that counted tokens; alike on all ranks, because they are collective. */
  #dispatches = 0;

  constructor(scope: EpScope<CpuDevice>, { window, tables, network, memory }: CpuEngineParts) {
    this.window = window;
    this.regions = new PlacedRegions(window, scope.size.regions);
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
      hosts: countedHosts(group),
    });
    fillAddressTables(tables.bases, { window, group }, scope.size.regions);
    this.#rows = new BufferRows(scope, { window, tables, memory });
    this.#exchange.fillRecordTable(tables.records.view());
    this.#counted = countsIn(tables.layout, network === undefined ? group.size : undefined);
  }

  get hostNetwork(): HostNetwork | undefined {
    return this.#network?.exchange.network;
  }

  throwIfUnusable(): void {
    this.window.barrier.throwIfUnusable(this.hostNetwork);
  }

  getDispatchLayout(topkIdx: Tensor<'i32' | 'i64'>): DispatchLayout {
    const { shape } = this.tables;
    return TensorSet.together(this.#device, (tensors) => {
      const layout = emptyLayout(tensors, topkIdx.shape[0]!, shape);
      const refusal = computeLayout(topkIdx, layout, shape);
      if (refusal !== undefined) throw refusal.error;
      return layout;
    });
  }

  barrier(wait: CallWait): Promise<void> {
    return this.#untilFailure(async () => {
      await this.#begin({ kind: 'barrier' }, wait);
      await this.#network?.exchange.settle(wait);
    });
  }

  async dispatch(input: DispatchPlanInput, options: EpCallOptions): Promise<DispatchResult> {
    if (options.previousEvent !== undefined) await options.previousEvent.wait(remaining(options));
    traceBegin('ep.dispatch.counts');
    const refusal = this.#count(input);
    // What a refused layout says of rows may not be counted.
    const layout = refusal === undefined && input.topkIdx === undefined ? input.layout! : this.tables.layout;
    const perHost = this.#network?.exchange.countHosts(this.#device, layout.isTokenInRank, input.numTokens);
    this.#exchange.publish(exchangeHeader(input), this.#countsOf(layout, perHost), refusal?.status);
    const begun = this.#begin({ kind: 'dispatch' }, options, true);
    if (begun !== undefined) await begun;
    this.#dispatches += 1;
    throwIfRefused(this.#exchange, this.tables.shape, refusal);
    // All ranks compute the same from the same counts, so all fail here or none does.
    const { rank, ranks } = this.#scope.group;
    const { expertAlignment } = input;
    const { tables } = this;
    const plan = planReceive(this.#device, { exchange: this.#exchange, tables, rank, ranks, expertAlignment });
    traceEnd('ep.dispatch.counts');
    try {
      const making = this.#device.allocating(() => this.#makeHandle(input, plan, layout));
      const handle = making instanceof Promise ? await making : making;
      traceBegin('ep.dispatch.rows');
      this.#rows.sendChoices(input, handle);
      const moving = this.#moveRows({ input, handle, isCached: false }, options);
      if (moving !== undefined) await moving;
      traceEnd('ep.dispatch.rows');
      const closing = this.#close({ kind: 'dispatch' }, options);
      if (closing !== undefined) await closing;
      return { ...this.#receive(input, handle, plan.numRecvTokens), event: eventAtOnce(options) };
    } catch (error) {
      throw this.#givenUp(error);
    }
  }

  async dispatchCached(
    input: DispatchPlanInput,
    handle: DispatchHandle,
    options: EpCallOptions,
  ): Promise<DispatchResult> {
    if (options.previousEvent !== undefined) await options.previousEvent.wait(remaining(options));
    const { bytes } = dtypes[input.data.dtype];
    const call: Call = { kind: 'cached dispatch', detail: bytes, handle: handle.sequence };
    try {
      const begun = this.#begin(call, options);
      if (begun !== undefined) await begun;
      traceBegin('ep.dispatch.rows');
      const moving = this.#moveRows({ input, handle, isCached: true }, options);
      if (moving !== undefined) await moving;
      traceEnd('ep.dispatch.rows');
      const closing = this.#close(call, options);
      if (closing !== undefined) await closing;
    } catch (error) {
      throw this.#givenUp(error);
    }
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
    const { handle } = input;
    const making = this.#device.allocating(() => this.#makeSums(input));
    const sums = making instanceof Promise ? await making : making;
    const place = this.#rows.stage(input, sums, this.#network === undefined);
    const call: Call = { kind: 'combine', detail: input.weights?.shape[1] ?? 0, handle: handle.sequence };
    try {
      this.#exchange.beginCall();
      this.#exchange.publishStatus(place);
      this.#network?.exchange.announce(this.#exchange, call);
      const opening = this.window.barrier.meet(callWord(call, 'opening'), options);
      if (opening !== undefined) await opening;
      traceBegin('ep.combine.rows');
      if (this.#network === undefined) this.#rows.sum(sums, input, this.#exchange.statuses());
      else await this.#network.combine(input, sums, { ...options, counts: this.#exchange });
      traceEnd('ep.combine.rows');
      const closing = this.#close(call, options);
      if (closing !== undefined) await closing;
    } catch (error) {
      throw this.#givenUp(error);
    }
    return { combinedX: sums.rows, combinedTopkWeights: sums.weights, event: eventAtOnce(options) };
  }

  /** The window is unmapped: tensors over it become invalid. */
  async close(): Promise<void> {
    // Its engines write into the window.
    await this.#network?.close();
    this.window[Symbol.dispose]();
    this.tables[Symbol.dispose]();
  }

  /** Returns when every rank of the group has begun the call, and this host has the records of all. */
  #begin(call: Call, options: CallWait, withCounts = false): Promise<void> | undefined {
    if (!withCounts) this.#exchange.beginCall();
    if (this.#network !== undefined) return this.#beginAcrossHosts(this.#network, call, { ...options, withCounts });
    return this.window.barrier.meet(callWord(call, 'opening'), options);
  }

  #beginAcrossHosts(
    { exchange }: CpuBufferNetwork,
    call: Call,
    { withCounts, ...wait }: CallWait & { readonly withCounts: boolean },
  ): Promise<void> {
    return this.#untilFailure(async () => {
      exchange.announce(this.#exchange, call, withCounts);
      await exchange.meet(this.#exchange, sooner(wait));
      await this.window.barrier.wait(callWord(call, 'opening'), wait);
    });
  }

  /** Returns when all rows of the call have come, or been read. */
  #close(call: Call, options: CallWait): Promise<void> | undefined {
    traceBegin('ep.closing');
    const closing = this.window.barrier.meet(callWord(call, 'closing'), options);
    if (closing !== undefined) return closing.then(endClosing);
    endClosing();
    return undefined;
  }

  /** A part of a call whose failure ends the buffer's use for all ranks; they hear of it at once. */
  async #untilFailure<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw this.#givenUp(error);
    }
  }

  #givenUp(error: unknown): unknown {
    this.window.barrier.giveUp(error);
    this.#network?.exchange.network.giveUp(error);
    return error;
  }

  #moveRows(
    of: { readonly input: DispatchPlanInput; readonly handle: DispatchHandle; readonly isCached: boolean },
    options: CallWait,
  ): Promise<void> | undefined {
    const { input, handle } = of;
    if (this.#network !== undefined) {
      return this.#network.dispatch(of, (first, count) => this.#rows.send(input, handle, first, count), options);
    }
    this.#rows.send(input, handle, 0, input.numTokens);
    return undefined;
  }

  /** Counts the choices; a layout that came with them must say the same. */
  #count({ topkIdx, layout, numTokens }: DispatchPlanInput): Refusal | undefined {
    const { size } = this.#scope.group;
    if (topkIdx === undefined) return checkCounts(layout as LayoutTensors, size);
    const counted = this.tables.layout;
    const refusal = computeLayout(topkIdx, counted, this.tables.shape);
    if (refusal !== undefined || layout === undefined) return refusal;
    return compareLayouts(layout, counted, numTokens * size);
  }

  #countsOf(layout: LayoutTensors, perHost: Int32Array | undefined): ExchangeCounts {
    if (layout === this.tables.layout && perHost === undefined) return this.#counted;
    return {
      perRank: layout.numTokensPerRank.view(),
      perExpert: layout.numTokensPerExpert.view().subarray(0, this.#scope.config.numExperts),
      ...(perHost && { perHost }),
    };
  }

  #makeHandle(input: DispatchPlanInput, plan: ReceivePlan, layout: LayoutTensors): DispatchHandle {
    const { group } = this.#scope;
    const device = this.#device;
    const rows = input.numWorstTokens || plan.numRecvTokens;
    const { set, made } = TensorSet.make(device, (tensors) => ({
      rowTable: tensors.empty('i32', [input.numTokens, group.size]),
      recvSrcIdx: tensors.empty('i32', [rows]),
    }));
    const { rowTable, recvSrcIdx } = made;
    const { address } = this.tables.nextRow;
    device.kernels.compactRows(layout.isTokenInRank.address, input.numTokens, group.size, address, rowTable.address);
    return new DispatchHandle({
      owner: this.#scope,
      sequence: this.#dispatches,
      numTokens: input.numTokens,
      numRecvTokens: plan.numRecvTokens,
      rows,
      memory: set,
      rowTable,
      routed: this.#network?.route(rowTable, input.numTokens, this.#exchange.collectPerHost()),
      rankPrefixMatrix: plan.rankPrefixMatrix,
      recvSrcIdx,
      numRecvTokensPerExpert: input.numWorstTokens ? [] : plan.numRecvTokensPerExpert,
    });
  }

  #makeSums({ handle, weights, out }: CheckedCombine): CombineSums {
    return {
      rows: out ?? this.#device.empty('bf16', [handle.numTokens, this.#scope.config.hidden]),
      weights: weights && this.#device.empty('f32', [handle.numTokens, weights.shape[1]!]),
    };
  }

  #receive(input: DispatchPlanInput, handle: DispatchHandle, numRecvTokens: number): Omit<DispatchResult, 'event'> {
    const { rows } = handle;
    const { kernels } = this.#device;
    kernels.copyBytes(handle.recvSrcIdx.address, this.regions.address('sourceToken'), numRecvTokens * 4);
    const k = input.topkIdx?.shape[1] ?? 0;
    const recvTopkIdx = input.topkIdx && this.regions.view(input.topkIdx.dtype, 'topkIdx', [rows, k]);
    const recvTopkWeights = input.topkWeights && this.regions.view('f32', 'topkWeights', [rows, k]);
    // The rows beyond the received ones exist only with numWorstTokens.
    if (rows > numRecvTokens) {
      for (const [tensor, byte] of [
        [handle.recvSrcIdx, 0xff],
        [recvTopkIdx, 0xff],
        [recvTopkWeights, 0],
      ] as const) {
        if (tensor === undefined) continue;
        const received = numRecvTokens * (tensor.bytes / rows);
        kernels.fillBytes(tensor.address + received, byte, tensor.bytes - received);
      }
    }
    return {
      recvX: this.#receivedRows(input, handle),
      recvTopkIdx,
      recvTopkWeights,
      numRecvTokensPerExpert: handle.numRecvTokensPerExpert,
      handle,
    };
  }

  #receivedRows({ data, scales }: DispatchPlanInput, { rows }: DispatchHandle): RowsLike {
    const received = this.regions.view(data.dtype, 'rows', [rows, this.#scope.config.hidden]);
    if (!scales) return received as Tensor<'bf16'>;
    return {
      data: received as Tensor<'fp8e4m3'>,
      scales: this.regions.view('f32', 'scales', [rows, scales.shape[1]!]),
    };
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

/** Views of a layout's counts. `ranks`: of a group on one host. */
function countsIn({ numTokensPerRank, numTokensPerExpert }: LayoutTensors, ranks: number | undefined): ExchangeCounts {
  const perRank = numTokensPerRank.view();
  const perExpert = numTokensPerExpert.view();
  if (ranks === undefined) return { perRank, perExpert };
  const own = perExpert.length / ranks;
  const ofRanks = Array.from({ length: ranks }, (_, rank) => perExpert.subarray(rank * own, (rank + 1) * own));
  return { perRank, perExpert, ofRanks };
}

// Makes the engine of an EpBuffer on CPU ranks: the ranks agree, then make windows and, on several hosts, links together.

/** Collective: agrees on the configuration, makes the tables and the window. */
export async function createCpuEngine(
  group: RankGroup,
  device: CpuDevice,
  config: Required<EpBufferConfig>,
  options: EpBufferOptions & CallWait,
): Promise<{ readonly scope: EpScope; readonly engine: EpEngine }> {
  const { rdmaBuffer: memory, ...wait } = options;
  const prepare = (): { readonly size: EpBufferSize; readonly tables: EpTables } => {
    const size = bufferSize(config, group.size, ranksOfHosts(group));
    const parts = [{ name: 'windows', bytes: size.bytes, isShared: true }];
    if (size.network !== undefined) {
      const { bytes } = size.network;
      if (memory !== undefined) checkRdmaBuffer(memory, { device, bytes });
      else parts.push({ name: 'network side', bytes, isShared: false });
    }
    checkMemoryBudget('EpBuffer', parts, { group, device });
    return { size, tables: makeEpTables(device, config, { ranks: group.size, size }) };
  };
  const release = ({ tables }: ReturnType<typeof prepare>): void => tables[Symbol.dispose]();
  const agreement = { what: 'EpBuffer', config: { ...config, device: device.kind }, prepare, release };
  const { size, tables } = await agreeOn(group, agreement, wait);
  try {
    const of = { group, device, name: 'ep', bytes: size.bytes, describeCall };
    const window = await SymmetricWindow.create({ ...wait, ...of });
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    try {
      const network = countedHosts(group) === 0 ? undefined : await openNetwork(scope, window, { ...wait, memory });
      const { barrier } = window;
      const peers = await PeerMemory.create('EpBuffer', { group, device, barrier }, wait);
      return { scope, engine: new CpuEpEngine(scope, { window, tables, network, memory: peers }) };
    } catch (error) {
      window[Symbol.dispose]();
      throw error;
    }
  } catch (error) {
    tables[Symbol.dispose]();
    throw error;
  }
}

async function openNetwork(...options: Parameters<typeof CpuBufferNetwork.create>): Promise<CpuBufferNetwork> {
  // Loaded here, so that ranks of one host never load what links to others need.
  const { CpuBufferNetwork: Network } = await import('./cpu-buffer-network.ts');
  return Network.create(...options);
}
