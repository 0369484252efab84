// The tables and the rows of a low-latency call on a CPU rank.
import { elementFormats, FP8_GROUP } from '../../../abi/element-formats.ts';
import { alignUp } from '../../../abi/layout.ts';
import { LOW_LATENCY_RESULTS, lowLatencyScales } from '../../../abi/low-latency.ts';
import { countOverflow, countRowBytes, type EpLink } from '../../../core/counts.ts';
import { type DType, dtypes } from '../../../core/dtype.ts';
import type { WeftlineError } from '../../../core/errors.ts';
import { dispatchWord, overflowError } from '../call-words.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/device.ts';
import { type Storage, Tensor } from '../../../device/tensor.ts';
import { emptyLayout, type LayoutShape } from '../../buffer/dispatch-layout.ts';
import {
  type CheckedLowLatencyCombine,
  type CheckedLowLatencyDispatch,
  type LowLatencyScales,
  rowShape,
  scalesDtype,
  scaleShape,
  scaleWords,
} from '../low-latency-arguments.ts';
import type {
  LowLatencyDispatchResult,
  LowLatencyHandle,
  LowLatencyRows,
  LowLatencyShortfall,
} from '../low-latency-results.ts';
import {
  type LowLatencyConfig,
  type LowLatencyMessage,
  type LowLatencyRegion,
  type LowLatencyScope,
  travelsByChoice,
} from '../low-latency-size.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { HostForwarding } from './host-forwarding.ts';

// The tables that low-latency kernels work with on a CPU rank, all allocated before the ranks agree that they can begin.

export type LowLatencyTables = ReturnType<typeof makeLowLatencyTables>;
type ResultTables = LowLatencyTables['results'][number];

/** Fails with WL_MEMORY. */
export function makeLowLatencyTables(device: CpuDevice, config: Required<LowLatencyConfig>, ranks: number) {
  const { maxTokensPerRank: most, maxTopk: k, hidden, numExperts } = config;
  const experts = numExperts / ranks;
  const isExpertMajor = config.layout === 'expert-major';
  const isByChoice = travelsByChoice(config);
  const places = isExpertMajor ? experts * config.maxTokensPerExpert : 0;
  const quantised = alignUp(Math.ceil(hidden / FP8_GROUP) * 4, 16) + hidden;
  const shape: LayoutShape = { ranks, experts: numExperts, dropped: -1, name: 'topkIdx' };
  return TensorSet.together(device, (tensors) => ({
    shape,
    layout: emptyLayout(tensors, most, shape),
    /** Addresses by rank, for one kernel at a time. */
    bases: tensors.empty('i32', [ranks]),
    scaleBases: tensors.empty('i32', [ranks]),
    next: tensors.empty('i32', [numExperts]),
    /** The table `next` as it was before each source. */
    first: tensors.empty('i32', [ranks, experts]),
    /** Rows of this rank's choices, and their ranks. */
    rowTable: tensors.empty('i32', [isByChoice ? most : 0, k]),
    rankTable: tensors.empty('i32', [isByChoice ? most : 0, k]),
    /** A quantised row, or what one sum adds up. */
    scratch: tensors.empty('u8', [Math.max(quantised, 8 * k, 4 * (ranks + 2))]),
    /** What each of the two results that are alive at once needs besides its rows. */
    results: Array.from({ length: LOW_LATENCY_RESULTS }, () => ({
      /** This rank's tokens as rows among those that it sends to each rank, -1 where they do not go. */
      sentRows: tensors.empty('i32', [most, ranks]),
      /** This rank's choices [M, K], `indexBytes` each as they were given; where combine or its report needs them. */
      choices: tensors.empty('u8', [isByChoice || config.elastic ? most * k * 8 : 0]),
      indexBytes: 4,
      /** Rows that this rank gets back of each rank. */
      rowsBack: new Int32Array(ranks),
      /** Elastic objects note 1 where the rank's rows are in the dispatch or combine, and what had to be dropped by token. */
      received: tensors.empty('i32', [config.elastic ? ranks : 0]),
      added: tensors.empty('i32', [config.elastic ? ranks : 0]),
      droppedChoices: tensors.empty('i32', [config.elastic ? most : 0]),
      /** Rows that came from each rank. */
      arrived: tensors.empty('i32', [ranks]),
      counts: tensors.empty('i32', [isExpertMajor ? experts : 0]),
      dropped: tensors.empty('i32', [isExpertMajor ? experts : 0]),
      ranges: tensors.empty('i32', [isExpertMajor ? experts : 0, ranks, 2]),
      tokens: tensors.empty('i32', [places]),
      /** The row of each choice [ranks, M, K] that came, and its weight. */
      rowOf: tensors.empty('i32', [isExpertMajor ? ranks * most * k : 0]),
      weights: tensors.empty('f32', [isExpertMajor && !isByChoice ? ranks * most * k : 0]),
    })),
  }));
}

// The rows of a dispatch go to the slots of their receivers, and from the slots here to their places.

/** What one dispatch receives into. */
interface ReceiveTarget {
  readonly input: CheckedLowLatencyDispatch;
  /** Slot of the window for the rows that arrive here. */
  readonly slot: number;
  readonly tables: ResultTables;
  readonly rows: LowLatencyRows;
  readonly k: number;
  readonly indexBytes: number;
  readonly rowBytes: number;
  /** 32-bit words of the scales of a row; none of bf16. */
  readonly words: number;
}

type ReceivedRows = Omit<LowLatencyDispatchResult, 'handle'> & {
  readonly recvSrcIdx: Tensor<'i32'>;
  readonly recvRange: Tensor<'i32'> | undefined;
};

export class CallRows implements Disposable {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #tables: LowLatencyTables;
  readonly #kernels: CpuDevice['kernels'];
  /** Bytes of a bf16 row. */
  readonly #rowBytes: number;
  readonly #isRankMajor: boolean;
  /** The way to ranks of other hosts, of a group on several. */
  readonly #forwarding: HostForwarding | undefined;
  /** Memory of results for which no `out` was given, by parity of the dispatch; made when first needed. */
  readonly #own: (Storage | undefined)[] = [undefined, undefined];

  // oxlint-disable-next-line max-params -- the last one is there on several hosts alone
  constructor(
    scope: LowLatencyScope<CpuDevice>,
    window: SymmetricWindow,
    tables: LowLatencyTables,
    forwarding: HostForwarding | undefined,
  ) {
    this.#scope = scope;
    this.#forwarding = forwarding;
    this.#window = window;
    this.#tables = tables;
    this.#kernels = scope.device.kernels;
    this.#rowBytes = scope.config.hidden * 2;
    this.#isRankMajor = scope.config.layout === 'rank-major';
  }

  /** Makes the memory of a result of that form, if there is none yet. Fails with WL_MEMORY. */
  reserve(scales: LowLatencyScales | undefined, sequence: number): Promise<void> | void {
    const { resultBytes } = this.#scope.size;
    const bytes = scales === undefined ? resultBytes.bf16 : resultBytes.fp8;
    const parity = sequence % this.#own.length;
    if ((this.#own[parity]?.bytes ?? -1) < bytes) return this.#grow(parity, bytes);
  }

  /** Touches the rows of results that a usual dispatch with K choices fills, so that the first ones here need not. */
  async touch(scales: LowLatencyScales | undefined, k: number): Promise<void> {
    if (this.#isRankMajor) return;
    const { config, group } = this.#scope;
    const { hidden, maxTokensPerRank, maxTokensPerExpert: capacity, numExperts } = config;
    const mean = (maxTokensPerRank * group.size * k) / numExperts;
    const rows = Math.min(capacity, Math.ceil(2 * mean));
    const rowBytes = scales === undefined ? hidden * 2 : hidden;
    for (let parity = 0; parity < this.#own.length; parity++) {
      await this.reserve(scales, parity);
      const { address } = this.#own[parity]!;
      for (let expert = 0; expert < numExperts / group.size; expert++) {
        this.#kernels.fillBytes(address + expert * capacity * rowBytes, 0, rows * rowBytes);
      }
    }
  }

  async #grow(parity: number, bytes: number): Promise<void> {
    const { device } = this.#scope;
    // The result that was there is no longer valid.
    this.#own[parity]?.[Symbol.dispose]();
    this.#own[parity] = undefined;
    this.#own[parity] = await device.allocating(() => device.allocate(bytes));
  }

  /** This rank's tokens, once to each rank that holds one of their experts. The layout was counted before. */
  send(input: CheckedLowLatencyDispatch, sequence: number): void {
    const { layout, bases, scaleBases, next } = this.#tables;
    const result = this.#resultOf(sequence);
    const { sentRows, choices } = result;
    const { x, topkIdx, topkWeights, scales } = input;
    const { config, group } = this.#scope;
    const { hidden, maxTokensPerRank } = config;
    const n = group.size;
    const [tokens, k] = topkIdx.shape as [number, number];
    const slot = this.#slotOf(sequence);
    const kernels = this.#kernels;
    const table = sentRows.address;
    kernels.fillBytes(next.address, 0, n * 4);
    kernels.compactRows(layout.isTokenInRank.address, tokens, n, next.address, table);
    this.#countRows(result, scales);
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const words = scales === undefined ? 0 : scaleWords(hidden, scales);
    const forwarding = this.#forwarding;
    const rowBytes = scales === undefined ? hidden * 2 : hidden;
    const hasWeights = topkWeights !== undefined;
    const word = dispatchWord(input);
    forwarding?.open(sequence, next.view(), { word, k, indexBytes, hasWeights, rowBytes, words });
    if (scales === undefined) {
      this.#aim(bases, 'rows', slot, rowBytes);
      kernels.scatterRows(x.address, hidden * 2, tokens, n, table, 0, bases.address);
    } else {
      this.#aim(bases, 'rows', slot, rowBytes);
      this.#aim(scaleBases, 'scales', slot, words * 4);
      kernels.scatterQuantized(
        x.address,
        hidden,
        tokens,
        n,
        table,
        bases.address,
        scaleBases.address,
        this.#isRankMajor ? 4 : words * 4,
        this.#isRankMajor ? maxTokensPerRank * 4 : 4,
        lowLatencyScales[scales],
        this.#tables.scratch.address,
      );
    }
    this.#aim(bases, 'sourceToken', slot, 4);
    kernels.scatterTokenIndex(tokens, n, table, 0, bases.address);
    const perRank = config.numExperts / n;
    this.#aim(bases, 'topkIdx', slot, k * indexBytes);
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, tokens, k, n, perRank, table, bases.address, 0);
    result.indexBytes = indexBytes;
    if (choices.bytes > 0) kernels.copyBytes(choices.address, topkIdx.address, topkIdx.bytes);
    if (hasWeights) {
      this.#aim(bases, 'topkWeights', slot, k * 4);
      const weights = topkWeights.address;
      kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, tokens, k, n, perRank, table, bases.address, 0);
    }
    if (forwarding === undefined) return;
    // The ranks of another host need all choices, not those of one of them.
    for (const { address, count, at } of forwarding.messages) {
      const list = address + at.sourceToken;
      kernels.gatherRows(address + at.topkIdx, topkIdx.address, k * indexBytes, list, count);
      if (hasWeights) kernels.gatherRows(address + at.topkWeights, topkWeights.address, k * 4, list, count);
    }
    forwarding.send(sequence);
    forwarding.listSums(sequence, sentRows, tokens);
  }

  /** Hot path. Combine brings back a row of each rank that holds a token, or of each expert. */
  #countRows({ rowsBack }: ResultTables, scales: LowLatencyScales | undefined): void {
    const { config, group } = this.#scope;
    const rowBytes = scales === undefined ? config.hidden * 2 : config.hidden + scaleWords(config.hidden, scales) * 4;
    const sent = this.#tables.next.view();
    const chosen = this.#tables.layout.numTokensPerExpert.view();
    const perRank = config.numExperts / group.size;
    const isByChoice = travelsByChoice(config);
    for (let rank = 0; rank < group.size; rank++) {
      // Another host sends one row per token whatever travels within one.
      const isRead = isByChoice && this.#linkTo(rank) !== 'network';
      rowsBack[rank] = isRead ? 0 : sent[rank]!;
      if (isRead)
        for (let expert = rank * perRank; expert < (rank + 1) * perRank; expert++) rowsBack[rank]! += chosen[expert]!;
      countRowBytes('dispatch', this.#linkTo(rank), sent[rank]! * rowBytes);
    }
  }

  #linkTo(rank: number): EpLink {
    const { rank: own, topology } = this.#scope.group;
    if (rank === own) return 'self';
    return topology.hostOf(rank) === topology.hostIndex ? 'host' : 'network';
  }

  beginReceive(input: CheckedLowLatencyDispatch, sequence: number): ReceiveTarget {
    const { topkIdx, scales } = input;
    const { hidden } = this.#scope.config;
    const slot = this.#slotOf(sequence);
    if (!this.#isRankMajor) this.#kernels.fillBytes(this.#tables.next.address, 0, this.#tables.next.bytes);
    return {
      input,
      slot,
      tables: this.#resultOf(sequence),
      rows: input.out ?? this.#rowsOf(scales, slot, sequence % this.#own.length),
      k: topkIdx.shape[1]!,
      indexBytes: dtypes[topkIdx.dtype].bytes,
      rowBytes: scales === undefined ? hidden * 2 : hidden,
      words: scales === undefined ? 0 : scaleWords(hidden, scales),
    };
  }

  /** Hot path. What that rank sent, to its places; ranks in order. */
  receive(target: ReceiveTarget, rank: number, count: number): void {
    const { k, indexBytes, tables, rowBytes, words, slot } = target;
    const kernels = this.#kernels;
    const { config, group } = this.#scope;
    const most = config.maxTokensPerRank;
    tables.arrived.view()[rank] = count;
    const at = (region: LowLatencyRegion, width: number): number => this.#address(region, slot) + rank * most * width;
    const tokens = at('sourceToken', 4);
    const topk = at('topkIdx', k * indexBytes);
    const weights = at('topkWeights', k * 4);
    if (this.#isRankMajor) {
      const rest = most - count;
      kernels.fillBytes(tokens + count * 4, 0xff, rest * 4);
      kernels.fillBytes(topk + count * k * indexBytes, 0xff, rest * k * indexBytes);
      kernels.fillBytes(weights + count * k * 4, 0, rest * k * 4);
      return;
    }
    const { next, first } = this.#tables;
    const experts = config.numExperts / group.size;
    kernels.copyBytes(first.address + rank * experts * 4, next.address, experts * 4);
    const [data, scales] = 'data' in target.rows ? [target.rows.data, target.rows.scales] : [target.rows, undefined];
    if (tables.weights.bytes > 0)
      kernels.copyBytes(tables.weights.address + rank * most * k * 4, weights, count * k * 4);
    kernels.placeRows(
      at('rows', rowBytes),
      rowBytes,
      at('scales', words * 4),
      words,
      tokens,
      topk,
      indexBytes,
      count,
      k,
      config.maxTokensPerExpert,
      next.address,
      data.address,
      scales?.address ?? 0,
      tables.tokens.address,
      tables.rowOf.address + rank * most * k * 4,
    );
  }

  /** All ranks' rows are placed: counts, ranges, the tail, and what the senders need to find their rows again. */
  endReceive({ input, tables }: ReceiveTarget, sequence: number): void {
    if (this.#isRankMajor) return;
    const { config, group } = this.#scope;
    const { next, first } = this.#tables;
    const experts = config.numExperts / group.size;
    const capacity = config.maxTokensPerExpert;
    const { counts, dropped, ranges, tokens } = tables;
    const lost = this.#kernels.closePlaces(
      first.address,
      next.address,
      group.size,
      experts,
      capacity,
      counts.address,
      dropped.address,
      ranges.address,
      tokens.address,
    );
    if (lost > 0) countOverflow(config.overflow, lost);
    if (lost > 0 && config.overflow === 'fail') throw this.#overflow(dropped, sequence);
    const stats = input.expertStats?.view();
    const offered = next.view();
    if (stats) for (let expert = 0; expert < experts; expert++) stats[expert]! += offered[expert]!;
    if (config.combineTravels === 'rank-sums') return;
    const parity = sequence % this.#own.length;
    for (let rank = 0; rank < group.size; rank++) {
      // The rows of all experts of this rank, in that rank's window at the place of the first of them.
      const table = this.#forwarding?.choices?.firstRowsOf(rank, parity) ?? this.#address('firstRows', parity, rank);
      const theirs = table + group.rank * experts * 4;
      this.#kernels.copyBytes(theirs, first.address + rank * experts * 4, experts * 4);
    }
  }

  result({ input, tables, rows, slot, k }: ReceiveTarget): ReceivedRows {
    const { group, config } = this.#scope;
    if (!this.#isRankMajor) {
      const { counts, dropped, tokens, ranges } = tables;
      return {
        recvX: rows,
        recvCount: counts,
        dropped,
        recvTopkIdx: undefined,
        recvTopkWeights: undefined,
        recvSrcIdx: tokens.reshape([config.numExperts / group.size, config.maxTokensPerExpert]),
        recvRange: ranges,
      };
    }
    const shape = [group.size, config.maxTokensPerRank];
    const { dtype } = input.topkIdx;
    return {
      recvX: rows,
      recvCount: tables.arrived,
      dropped: undefined,
      recvTopkIdx: this.#view(dtype, 'topkIdx', slot, [...shape, k]),
      recvTopkWeights: input.topkWeights && this.#view('f32', 'topkWeights', slot, [...shape, k]),
      recvSrcIdx: this.#view('i32', 'sourceToken', slot, shape),
      recvRange: undefined,
    };
  }

  // A combine: rows are brought to where peers read them, pulled from all ranks and added up.

  /** Address where peers read this rank's rows in a combine with the handle of that dispatch. */
  bufferAddress(sequence: number): number {
    return this.#address('combineRows', sequence % LOW_LATENCY_RESULTS);
  }

  buffer(sequence: number): Tensor<'bf16'> {
    const { storage } = this.#window;
    return new Tensor(storage, 'bf16', rowShape(this.#scope), this.bufferAddress(sequence) - storage.address);
  }

  /** Brings what peers will read there, unless it is there already. */
  stage({ x, handle }: CheckedLowLatencyCombine): void {
    const { config } = this.#scope;
    const target = this.bufferAddress(handle.sequence);
    const result = this.#resultOf(handle.sequence);
    if (config.layout === 'rank-major') this.#copyBlocks(target, x, result.arrived, config.maxTokensPerRank);
    else if (config.combineTravels === 'choices') this.#copyBlocks(target, x, result.counts, config.maxTokensPerExpert);
    else this.#addChoices(target, x, result, handle.topk);
  }

  /**
   * Adds up the rows of this rank's tokens, which all ranks have by now. `without`: ranks that do not count are those with 0
   * in the result's table `added`.
   */
  add({ handle, topkWeights }: CheckedLowLatencyCombine, out: Tensor<'bf16'>, without: boolean): void {
    this.#countSums(this.#resultOf(handle.sequence), without);
    if (without) this.#leaveOut(handle.sequence, handle.numTokens);
    if (this.#forwarding !== undefined) this.#addHosts(this.#forwarding, { handle, topkWeights, out, without });
    else if (topkWeights === undefined) this.#addRanks(handle.sequence, handle.numTokens, out);
    else this.#addWeighted(handle.sequence, topkWeights, out, without);
  }

  #countSums({ rowsBack, added }: ResultTables, without: boolean): void {
    const there = without ? added.view() : undefined;
    for (const [rank, rows] of rowsBack.entries()) {
      if (there?.[rank] !== 0) countRowBytes('combine', this.#linkTo(rank), rows * this.#rowBytes);
    }
  }

  /** The received rows of each block of `most` rows. */
  #copyBlocks(target: number, x: Tensor<'bf16'>, counts: Tensor<'i32'>, most: number): void {
    if (x.address === target) return;
    const { copyBytes } = this.#scope.device.kernels;
    const blockBytes = most * this.#rowBytes;
    const view = counts.view();
    for (let block = 0; block < view.length; block++) {
      copyBytes(target + block * blockBytes, x.address + block * blockBytes, view[block]! * this.#rowBytes);
    }
  }

  /** One row for each token of each rank: the weighted rows of its experts here. */
  #addChoices(target: number, x: Tensor<'bf16'>, { arrived, rowOf, weights }: ResultTables, k: number): void {
    const { bases, scratch } = this.#tables;
    const most = this.#scope.config.maxTokensPerRank;
    const counts = arrived.view();
    bases.view()[0] = x.address | 0;
    for (let rank = 0; rank < counts.length; rank++) {
      const first = rank * most;
      this.#scope.device.kernels.sumWeightedRows(
        target + first * this.#rowBytes,
        this.#rowBytes,
        counts[rank]!,
        k,
        rowOf.address + first * k * 4,
        0,
        weights.address + first * k * 4,
        bases.address,
        scratch.address,
      );
    }
  }

  shortfall({ sequence, numTokens }: LowLatencyHandle): LowLatencyShortfall {
    const { added, droppedChoices } = this.#resultOf(sequence);
    const { storage, address } = droppedChoices;
    return { activeMask: added, droppedChoices: new Tensor(storage, 'i32', [numTokens], address - storage.address) };
  }

  /** Counts the choices of each of this rank's tokens that ranks without rows hold. */
  countDropped({ sequence, numTokens, topk }: LowLatencyHandle): void {
    const { choices, indexBytes, added, droppedChoices } = this.#resultOf(sequence);
    const { config, group } = this.#scope;
    const perRank = config.numExperts / group.size;
    // The lower halves of i64 ids, which are -1 for none too.
    const ids = this.#scope.device.hostView('i32', choices.address, choices.bytes / 4);
    const step = indexBytes / 4;
    const counts = droppedChoices.view();
    const there = added.view();
    counts.fill(0);
    for (let cell = 0; cell < numTokens * topk; cell++) {
      const expert = ids[cell * step]!;
      if (expert >= 0 && there[Math.floor(expert / perRank)] === 0) counts[Math.floor(cell / topk)]! += 1;
    }
  }

  #leaveOut(sequence: number, tokens: number): void {
    const { added, sentRows } = this.#resultOf(sequence);
    const [there, rows] = [added.view(), sentRows.view()];
    const ranks = there.length;
    for (let rank = 0; rank < ranks; rank++) {
      if (there[rank] === 0) for (let token = 0; token < tokens; token++) rows[token * ranks + rank] = -1;
    }
  }

  #addHosts(
    forwarding: HostForwarding,
    {
      handle,
      topkWeights,
      out,
      without,
    }: { handle: LowLatencyHandle; topkWeights: Tensor<'f32'> | undefined; out: Tensor<'bf16'>; without: boolean },
  ): void {
    const { sequence, numTokens: tokens, topk: k } = handle;
    const { sentRows, added } = this.#resultOf(sequence);
    if (without) forwarding.listSums(sequence, sentRows, tokens);
    if (topkWeights !== undefined) {
      const { choices, indexBytes } = this.#resultOf(sequence);
      const [topk, weights] = [choices.address, topkWeights.address];
      const there = without ? added.view() : undefined;
      forwarding.addUpChoices({ sequence, tokens, out: out.address, topk, indexBytes, k, weights, added: there });
      return;
    }
    const { bases } = this.#tables;
    this.#fillBases(bases, 'combineRows', sequence % LOW_LATENCY_RESULTS, this.#rowBytes);
    const own = bases.view().filter((_, rank) => this.#linkTo(rank) !== 'network');
    forwarding.addUp({ sequence, tokens, own, out: out.address });
  }

  #addRanks(sequence: number, tokens: number, out: Tensor<'bf16'>): void {
    const { bases, scratch } = this.#tables;
    const { group, device } = this.#scope;
    this.#fillBases(bases, 'combineRows', sequence % LOW_LATENCY_RESULTS, this.#rowBytes);
    device.kernels.gatherSum(
      out.address,
      this.#rowBytes,
      tokens,
      group.size,
      this.#resultOf(sequence).sentRows.address,
      0,
      bases.address,
      0,
      0,
      0,
      scratch.address,
      elementFormats.bf16,
    );
  }

  #addWeighted(sequence: number, weights: Tensor<'f32'>, out: Tensor<'bf16'>, without: boolean): void {
    const { bases, scratch, next, rowTable, rankTable } = this.#tables;
    const { config, group, device, size } = this.#scope;
    const { kernels } = device;
    const [tokens, k] = weights.shape as [number, number];
    const { choices, indexBytes } = this.#resultOf(sequence);
    const { offset, stride } = size.regions.firstRows;
    const first = this.#window.address + offset + (sequence % LOW_LATENCY_RESULTS) * stride;
    kernels.copyBytes(next.address, first, config.numExperts * 4);
    const perRank = config.numExperts / group.size;
    const { address } = choices;
    kernels.choiceRows(
      address,
      indexBytes,
      tokens,
      k,
      perRank,
      config.maxTokensPerExpert,
      next.address,
      rowTable.address,
      rankTable.address,
    );
    if (without) {
      const added = this.#resultOf(sequence).added.view();
      const [rows, ranks] = [rowTable.view(), rankTable.view()];
      for (let cell = 0; cell < tokens * k; cell++) if (added[ranks[cell]!] === 0) rows[cell] = -1;
    }
    this.#fillBases(bases, 'combineRows', sequence % LOW_LATENCY_RESULTS, 0);
    kernels.sumWeightedRows(
      out.address,
      this.#rowBytes,
      tokens,
      k,
      rowTable.address,
      rankTable.address,
      weights.address,
      bases.address,
      scratch.address,
    );
  }

  [Symbol.dispose](): void {
    for (const storage of this.#own) storage?.[Symbol.dispose]();
  }

  #rowsOf(scales: LowLatencyScales | undefined, slot: number, parity: number): LowLatencyRows {
    const shape = rowShape(this.#scope);
    const storage = this.#isRankMajor ? this.#window.storage : (this.#own[parity] as Storage);
    const begin = this.#isRankMajor ? this.#address('rows', slot) - storage.address : 0;
    if (scales === undefined) return new Tensor(storage, 'bf16', shape, begin);
    const data = new Tensor(storage, 'fp8e4m3', shape, begin);
    const behind = this.#isRankMajor ? this.#address('scales', slot) - storage.address : data.bytes;
    return { data, scales: new Tensor(storage, scalesDtype(scales), scaleShape(this.#scope, scales), behind) };
  }

  #view<D extends DType>(dtype: D, region: LowLatencyRegion, slot: number, shape: readonly number[]): Tensor<D> {
    const { storage } = this.#window;
    return new Tensor(storage, dtype, shape, this.#address(region, slot) - storage.address);
  }

  #slotOf(sequence: number): number {
    return sequence % this.#scope.size.receiveSlots;
  }

  #resultOf(sequence: number): ResultTables {
    return this.#tables.results[sequence % this.#own.length] as ResultTables;
  }

  /** `index`: of a rank of this host. */
  #address(region: LowLatencyRegion, slot: number, index = this.#window.index): number {
    const { offset, stride } = this.#scope.size.regions[region];
    return this.#window.addresses[index]! + offset + slot * stride;
  }

  /** Fills in where the rows of this rank begin at each rank of this host; a row of the region has `width` bytes. */
  #fillBases(table: Tensor<'i32'>, region: LowLatencyRegion, slot: number, width: number): void {
    const view = table.view();
    const { group, config } = this.#scope;
    const { scaleUpRanks } = group.topology;
    const own = group.rank * config.maxTokensPerRank * width;
    for (let index = 0; index < scaleUpRanks.length; index++)
      view[scaleUpRanks[index]!] = (this.#address(region, slot, index) + own) | 0;
  }

  /** The same, and at each forwarder where the array begins in the message to its host. */
  #aim(table: Tensor<'i32'>, region: keyof LowLatencyMessage & LowLatencyRegion, slot: number, width: number): void {
    this.#fillBases(table, region, slot, width);
    if (this.#forwarding === undefined) return;
    const view = table.view();
    for (const { forwarder, address, at } of this.#forwarding.messages) view[forwarder] = (address + at[region]) | 0;
  }

  #overflow(dropped: Tensor<'i32'>, dispatch: number): WeftlineError {
    const { group, config } = this.#scope;
    const local = dropped.view().findIndex((rows) => rows > 0);
    const expert = (group.rank * config.numExperts) / group.size + local;
    const rows = config.maxTokensPerExpert + dropped.view()[local]!;
    return overflowError({ expert, rows, dispatch }, config);
  }
}
