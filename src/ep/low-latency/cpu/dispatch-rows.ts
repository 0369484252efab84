// The rows of a low-latency dispatch on a CPU rank: to the slots of their receivers, and from the slots here to their places.
import { lowLatencyScales } from '../../../abi/low-latency.ts';
import { countOverflow, countRowBytes } from '../../../core/counts.ts';
import { type DType, dtypes } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Storage, Tensor } from '../../../device/tensor.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import {
  type CheckedLowLatencyDispatch,
  type LowLatencyScales,
  rowShape,
  scaleShape,
  scalesDtype,
  scaleWords,
} from '../low-latency-arguments.ts';
import type { LowLatencyDispatchResult, LowLatencyRows } from '../low-latency-results.ts';
import type { LowLatencyRegion, LowLatencyScope } from '../low-latency-size.ts';
import type { LowLatencyTables, ResultTables } from './low-latency-tables.ts';

/** What one dispatch receives into. */
interface ReceiveTarget {
  readonly input: CheckedLowLatencyDispatch;
  /** Of the rows that arrive here, among those of the window. */
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

export class DispatchRows implements Disposable {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #tables: LowLatencyTables;
  readonly #kernels: CpuDevice['kernels'];
  readonly #isRankMajor: boolean;
  /** Memory of results for which no `out` was given, by parity of the dispatch; made when first needed. */
  readonly #own: (Storage | undefined)[] = [undefined, undefined];

  constructor(scope: LowLatencyScope<CpuDevice>, window: SymmetricWindow, tables: LowLatencyTables) {
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    this.#kernels = scope.device.kernels;
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
    if (scales === undefined) {
      this.#fillBases(bases, 'rows', slot, hidden * 2);
      kernels.scatterRows(x.address, hidden * 2, tokens, n, table, 0, bases.address);
    } else {
      const words = scaleWords(hidden, scales);
      this.#fillBases(bases, 'rows', slot, hidden);
      this.#fillBases(scaleBases, 'scales', slot, words * 4);
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
    this.#fillBases(bases, 'sourceToken', slot, 4);
    kernels.scatterTokenIndex(tokens, n, table, 0, bases.address);
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = config.numExperts / n;
    this.#fillBases(bases, 'topkIdx', slot, k * indexBytes);
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, tokens, k, n, perRank, table, bases.address, 0);
    result.indexBytes = indexBytes;
    if (choices.bytes > 0) kernels.copyBytes(choices.address, topkIdx.address, topkIdx.bytes);
    if (topkWeights === undefined) return;
    this.#fillBases(bases, 'topkWeights', slot, k * 4);
    const weights = topkWeights.address;
    kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, tokens, k, n, perRank, table, bases.address, 0);
  }

  /** Hot path. Combine brings back a row of each rank that holds a token, or of each expert. */
  #countRows({ rowsBack }: ResultTables, scales: LowLatencyScales | undefined): void {
    const { config, group } = this.#scope;
    const rowBytes = scales === undefined ? config.hidden * 2 : config.hidden + scaleWords(config.hidden, scales) * 4;
    const sent = this.#tables.next.view();
    const chosen = this.#tables.layout.numTokensPerExpert.view();
    const perRank = config.numExperts / group.size;
    const isByChoice = !this.#isRankMajor && config.combineTravels === 'choices';
    for (let rank = 0; rank < group.size; rank++) {
      rowsBack[rank] = isByChoice ? 0 : sent[rank]!;
      if (isByChoice)
        for (let expert = rank * perRank; expert < (rank + 1) * perRank; expert++) rowsBack[rank]! += chosen[expert]!;
      countRowBytes('dispatch', rank === group.rank ? 'self' : 'host', sent[rank]! * rowBytes);
    }
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
      // Of all experts of this rank, in that rank's window, at the place of the first of them.
      const theirs = this.#address('firstRows', parity, rank) + group.rank * experts * 4;
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

  #address(region: LowLatencyRegion, slot: number, rank = this.#window.index): number {
    const { offset, stride } = this.#scope.size.regions[region];
    return this.#window.addresses[rank]! + offset + slot * stride;
  }

  /** Where the rows of this rank begin at each rank; a row of the region has `width` bytes. */
  #fillBases(table: Tensor<'i32'>, region: LowLatencyRegion, slot: number, width: number): void {
    const view = table.view();
    const own = this.#window.index * this.#scope.config.maxTokensPerRank * width;
    for (let rank = 0; rank < view.length; rank++) view[rank] = (this.#address(region, slot, rank) + own) | 0;
  }

  #overflow(dropped: Tensor<'i32'>, sequence: number): WeftlineError {
    const { group, config } = this.#scope;
    const { maxTokensPerExpert: capacity } = config;
    const local = dropped.view().findIndex((rows) => rows > 0);
    const expert = (group.rank * config.numExperts) / group.size + local;
    const rows = capacity + dropped.view()[local]!;
    return new WeftlineError(
      'WL_CAPACITY',
      `Expert ${expert} got ${rows} rows in dispatch ${sequence}, more than its ${capacity} (maxTokensPerExpert); raise that, or drop rows with overflow: 'drop'`,
      { details: { expert, rows, dispatch: sequence, maxTokensPerExpert: capacity } },
    );
  }
}
