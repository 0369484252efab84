// The CPU's way of a low-latency call: rows go once to each rank, into a slot that is known without a word of anybody else;
// the receiver gives them their places. Combine pulls. Ranks wait for each other's words alone, never for a barrier.
import { availableParallelism } from 'node:os';
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { callWord } from '../../../collective/calls.ts';
import { StepRunner } from '../../../collective/steps.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../../device/host-access.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { computeLayout } from '../../buffer/dispatch-layout.ts';
import type { CheckedLowLatencyCombine, CheckedLowLatencyDispatch } from '../low-latency-arguments.ts';
import type { LowLatencyEngine, LowLatencyWait, SentCombine } from '../low-latency-engine.ts';
import { LowLatencyHandle } from '../low-latency-handle.ts';
import type { LowLatencyDispatchResult } from '../low-latency-results.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import { compareCombine, compareDispatch, dispatchWord } from '../call-words.ts';
import { CombineRows } from './combine-rows.ts';
import { DispatchRows } from './dispatch-rows.ts';
import { LowLatencyCells } from './low-latency-cells.ts';
import type { LowLatencyTables } from './low-latency-tables.ts';
import { type RankWait, RanksInOrder } from './ranks-in-order.ts';

/** What an engine is made of, and owns. */
export interface CpuLowLatencyParts {
  readonly window: SymmetricWindow;
  readonly tables: LowLatencyTables;
}

export class CpuLowLatencyEngine implements LowLatencyEngine {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #tables: LowLatencyTables;
  readonly #cells: LowLatencyCells;
  readonly #rows: DispatchRows;
  readonly #sums: CombineRows;
  readonly #inOrder: RanksInOrder;
  readonly #runner: StepRunner;
  readonly #isRankMajor: boolean;
  /** Calls that were received, also where a later one was before an earlier one. */
  readonly #received = new FinishedCalls();
  readonly #taken = new FinishedCalls();
  /** Number of the last combine, and of the last one whose rows lay in each slot. */
  #combines = 0;
  readonly #combineOfSlot = [0, 0];

  constructor(scope: LowLatencyScope<CpuDevice>, { window, tables }: CpuLowLatencyParts) {
    const { group, device, size, config } = scope;
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    this.#isRankMajor = config.layout === 'rank-major';
    this.#cells = new LowLatencyCells(device, window, size);
    this.#rows = new DispatchRows(scope, window, tables);
    this.#sums = new CombineRows(scope, window, tables);
    this.#inOrder = new RanksInOrder(this.#cells, window.ranks);
    const { timeoutMs, collectiveSpinUs: spinUs } = group.settings;
    const isCrowded = group.size > availableParallelism();
    this.#runner = new StepRunner(this.#cells.bells, { failure: window.barrier.failure, timeoutMs, spinUs, isCrowded });
  }

  get mapped(): MemoryRange {
    return this.#window.storage;
  }

  throwIfUnusable(): void {
    this.#window.barrier.throwIfUnusable();
  }

  prepareDispatch(input: CheckedLowLatencyDispatch, sequence: number): Promise<void> | void {
    computeLayout(input.topkIdx, this.#tables.layout, this.#tables.shape);
    if (this.#isRankMajor || input.out !== undefined) return;
    return this.#rows.reserve(input.scales, sequence);
  }

  async dispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    await this.sendDispatch(input, sequence, wait);
    return this.receiveDispatch(input, sequence, wait);
  }

  async sendDispatch(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): Promise<void> {
    // Rows by rank stay where they came until now; see receiveSlots.
    if (this.#isRankMajor) this.#cells.publish('released', sequence - LOW_LATENCY_RESULTS);
    const free = sequence - this.#scope.size.receiveSlots;
    const waiting = this.#until({ word: 'released', call: free, name: `dispatch ${sequence}, for free slots` }, wait);
    if (waiting !== undefined) await waiting;
    const word = dispatchWord(input);
    traceBegin('ep.dispatch.rows');
    this.#orGiveUp(() => {
      this.#rows.send(input, sequence);
      const perRank = this.#tables.layout.numTokensPerRank.view();
      for (let rank = 0; rank < perRank.length; rank++) {
        this.#cells.write(rank, 'rows', sequence, perRank[rank]!);
        this.#cells.write(rank, 'dispatchCall', sequence, word);
      }
    });
    this.#cells.publish('dispatched', sequence);
    traceEnd('ep.dispatch.rows');
  }

  async receiveDispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    const here = dispatchWord(input);
    const target = this.#rows.beginReceive(input, sequence);
    const visit = (rank: number): void => {
      compareDispatch(here, this.#cells.read(rank, 'dispatchCall', sequence), this.#window.ranks[rank]!);
      this.#rows.receive(target, rank, this.#cells.read(rank, 'rows', sequence));
    };
    const name = `dispatch ${sequence}, for rows`;
    const stats = input.waitStats?.view();
    const waiting = this.#until({ word: 'dispatched', call: sequence, name, visit, stats }, wait);
    if (waiting !== undefined) await waiting;
    this.#orGiveUp(() => this.#rows.endReceive(target, sequence));
    if (!this.#isRankMajor) this.#cells.publish('released', this.#received.finish(sequence));
    const { recvSrcIdx, recvRange, ...result } = this.#rows.result(target);
    const [numTokens, topk] = input.topkIdx.shape as [number, number];
    const parts = { owner: this.#scope, sequence, numTokens, topk, recvSrcIdx, recvRange };
    return { ...result, handle: new LowLatencyHandle(parts) };
  }

  combineBufferAddress(handle: LowLatencyHandle): number {
    return this.#sums.bufferAddress(handle.sequence);
  }

  async combineBuffer(handle: LowLatencyHandle, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    await this.#untilCombineSlotIsFree(handle, wait);
    return this.#sums.buffer(handle.sequence);
  }

  async combine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    return this.receiveCombine(await this.sendCombine(input, wait), wait);
  }

  async sendCombine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<SentCombine> {
    const { handle } = input;
    const { device, config } = this.#scope;
    // Before anything moves: a rank without memory for the result has not begun the call.
    const making = device.allocating(() => input.out ?? device.empty('bf16', [handle.numTokens, config.hidden]));
    const out = making instanceof Promise ? await making : making;
    await this.#untilCombineSlotIsFree(handle, wait);
    this.#combines += 1;
    const number = this.#combines;
    this.#orGiveUp(() => {
      this.#sums.stage(input);
      for (let rank = 0; rank < this.#window.ranks.length; rank++) {
        this.#cells.write(rank, 'combineCall', number, handle.sequence | 0);
      }
    });
    this.#combineOfSlot[handle.sequence % LOW_LATENCY_RESULTS] = number;
    this.#cells.publish('combined', number);
    return { input, number, out };
  }

  async receiveCombine({ input, number, out }: SentCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    const { handle } = input;
    const visit = (rank: number): void => {
      const there = this.#cells.read(rank, 'combineCall', number);
      compareCombine(handle.sequence | 0, there, this.#window.ranks[rank]!);
    };
    const name = `combine of dispatch ${handle.sequence}, for rows`;
    const stats = input.waitStats?.view();
    const waiting = this.#until({ word: 'combined', call: number, name, visit, stats }, wait);
    if (waiting !== undefined) await waiting;
    traceBegin('ep.combine.rows');
    this.#orGiveUp(() => this.#sums.add(input, out));
    traceEnd('ep.combine.rows');
    this.#cells.publish('taken', this.#taken.finish(number));
    return out;
  }

  barrier(wait: LowLatencyWait): Promise<void> {
    return this.#window.barrier.wait(callWord({ kind: 'barrier' }, 'opening'), wait);
  }

  /** The window is unmapped: tensors over it become invalid. */
  close(): void {
    this.#window[Symbol.dispose]();
    this.#rows[Symbol.dispose]();
    this.#tables[Symbol.dispose]();
  }

  async #untilCombineSlotIsFree({ sequence }: LowLatencyHandle, wait: LowLatencyWait): Promise<void> {
    const call = this.#combineOfSlot[sequence % LOW_LATENCY_RESULTS]!;
    if (call === 0) return;
    const name = `combine of dispatch ${sequence}, until its memory is read`;
    const waiting = this.#until({ word: 'taken', call, name }, wait);
    if (waiting !== undefined) await waiting;
  }

  /** A part of a call in which only this rank can fail: the others hear the reason instead of waiting for it. */
  #orGiveUp(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.#window.barrier.failure.raise(error);
      this.#cells.bells.ringAll();
      throw error;
    }
  }

  #until(what: RankWait, wait: LowLatencyWait): Promise<void> | undefined {
    return this.#runner.run(this.#inOrder.begin(what), wait);
  }
}

/** Calls that may end in another order than they began: how far all of them have. */
class FinishedCalls {
  #all = 0;
  readonly #early = new Set<number>();

  /** The last call up to which all have ended, now that this one has. */
  finish(call: number): number {
    if (call !== this.#all + 1) {
      this.#early.add(call);
      return this.#all;
    }
    this.#all = call;
    while (this.#early.delete(this.#all + 1)) this.#all += 1;
    return this.#all;
  }
}
