// The rows of a low-latency combine on a CPU rank: brought to where peers read them, pulled from all ranks and added up.
import { elementFormats } from '../../../abi/element-formats.ts';
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { countRowBytes } from '../../../core/counts.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { Tensor } from '../../../device/tensor.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { type CheckedLowLatencyCombine, rowShape } from '../low-latency-arguments.ts';
import type { LowLatencyHandle, LowLatencyShortfall } from '../low-latency-results.ts';
import type { LowLatencyScope } from '../low-latency-size.ts';
import type { LowLatencyTables, ResultTables } from './low-latency-tables.ts';

export class CombineRows {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #tables: LowLatencyTables;
  readonly #rowBytes: number;

  constructor(scope: LowLatencyScope<CpuDevice>, window: SymmetricWindow, tables: LowLatencyTables) {
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    this.#rowBytes = scope.config.hidden * 2;
  }

  /** Where peers read this rank's rows in a combine with the handle of that dispatch. */
  bufferAddress(sequence: number): number {
    return this.#address(sequence, this.#window.index);
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
    this.#countRows(this.#resultOf(handle.sequence), without);
    if (without) this.#leaveOut(handle.sequence, handle.numTokens);
    if (topkWeights === undefined) this.#addRanks(handle.sequence, handle.numTokens, out);
    else this.#addWeighted(handle.sequence, topkWeights, out, without);
  }

  #countRows({ rowsBack, added }: ResultTables, without: boolean): void {
    const there = without ? added.view() : undefined;
    for (const [rank, rows] of rowsBack.entries()) {
      const link = rank === this.#scope.group.rank ? 'self' : 'host';
      if (there?.[rank] !== 0) countRowBytes('combine', link, rows * this.#rowBytes);
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
    // Of i64 ids the lower halves, which are -1 for none too.
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

  #addRanks(sequence: number, tokens: number, out: Tensor<'bf16'>): void {
    const { bases, scratch } = this.#tables;
    const { config, group, device } = this.#scope;
    const own = group.rank * config.maxTokensPerRank * this.#rowBytes;
    this.#fillBases(sequence, own);
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
    this.#fillBases(sequence, 0);
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

  #resultOf(sequence: number): ResultTables {
    return this.#tables.results[sequence % LOW_LATENCY_RESULTS] as ResultTables;
  }

  #address(sequence: number, rank: number): number {
    const { offset, stride } = this.#scope.size.regions.combineRows;
    return this.#window.addresses[rank]! + offset + (sequence % LOW_LATENCY_RESULTS) * stride;
  }

  #fillBases(sequence: number, beyond: number): void {
    const view = this.#tables.bases.view();
    for (let rank = 0; rank < view.length; rank++) view[rank] = (this.#address(sequence, rank) + beyond) | 0;
  }
}
