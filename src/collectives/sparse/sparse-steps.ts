// What a rank does in a sparse all-reduce, as a worker, an aggregator or both; why it gives up when workers do not come.
import type { ErrorDetails, WeftlineError } from '../../core/errors.ts';
import type { StepFailure, Steps } from '../../group/steps.ts';
import type { Missing } from '../../windows/abort-record.ts';
import { secondNet } from '../../core/deadline.ts';
import type { AggregatorSlots } from './aggregator-slots.ts';
import type { BlockReducer } from './block-reducer.ts';
import type { BlockCompletions } from './block-completions.ts';
import type { SparseCall } from './sparse-call.ts';
import type { WindowBoard } from './window-board.ts';
import type { WorkerSlots } from './worker-slots.ts';

export interface WorkerParts {
  readonly reducer: BlockReducer;
  readonly call: SparseCall;
  /** Of a worker that aggregates as well: both its sides. */
  readonly serving: { readonly worker: WorkerSlots; readonly aggregator: AggregatorSlots } | undefined;
  /** Of a call that tells how far it is. */
  readonly completions: BlockCompletions | undefined;
}

/** A worker's call; a worker that aggregates as well serves the others meanwhile. */
export class WorkerSteps implements Steps {
  readonly name: string = 'sparse allReduce';
  readonly #reducer: BlockReducer;
  readonly #serving: WorkerParts['serving'];
  readonly #completions: BlockCompletions | undefined;
  /** Until it has begun. */
  #call: SparseCall | undefined;

  constructor({ reducer, call, serving, completions }: WorkerParts) {
    this.#reducer = reducer;
    this.#call = call;
    this.#serving = serving;
    this.#completions = completions;
  }

  get progress(): number {
    return this.#reducer.progress + (this.#serving?.aggregator.progress ?? 0);
  }

  advance(): boolean {
    const call = this.#call;
    this.#call = undefined;
    if (call !== undefined) this.#reducer.begin(call);
    this.#serving?.aggregator.advance();
    const isOver = this.#reducer.advance();
    const isTold = this.#completions?.processCompletions(this.#reducer.finalBlocks) ?? true;
    return isOver && isTold && this.#hasServed();
  }

  missing(): readonly number[] {
    const late = this.#serving?.aggregator.missing() ?? [];
    return late.length > 0 ? late : this.#reducer.awaited();
  }

  /** Others may still wait for what this rank hands down to them of this call. What they send of the next one can wait. */
  #hasServed(): boolean {
    if (this.#serving === undefined) return true;
    const { aggregator, worker } = this.#serving;
    for (let slot = 0; slot < aggregator.slots; slot++) {
      const handedDown = aggregator.numberOf(slot);
      if (handedDown !== undefined && ((handedDown - worker.numberOf(slot)) | 0) < 0) return false;
    }
    return true;
  }
}

/** Sums for the workers until all of them have left. */
export class ServeSteps implements Steps {
  readonly name: string = 'sparse allReduce, as an aggregator';
  readonly #aggregator: AggregatorSlots;
  readonly #board: WindowBoard;
  readonly #workers: readonly number[];

  constructor(aggregator: AggregatorSlots, board: WindowBoard, workers: readonly number[]) {
    this.#aggregator = aggregator;
    this.#board = board;
    this.#workers = workers;
  }

  get progress(): number {
    return this.#aggregator.progress;
  }

  advance(): boolean {
    this.#aggregator.advance();
    return this.#aggregator.isIdle && this.#workers.every((worker) => this.#board.hasLeft(worker));
  }

  /** While no call is under way, those who may still begin one. */
  missing(): readonly number[] {
    if (!this.#aggregator.isIdle) return this.#aggregator.missing();
    return this.#workers.filter((worker) => !this.#board.hasLeft(worker));
  }
}

/** When to give up on those who give up by themselves, where so many ranks on the way to the culprit do so one after another. */
export function nthNet(timeoutMs: number, nets: number): number {
  let later = timeoutMs;
  for (let net = 0; net < nets; net++) later = secondNet(later);
  return later;
}

/**
 * Adds that a worker who keeps the others waiting is named by its aggregator, who alone knows which one it is: it gives up
 * when nobody has sent it anything for as long as the workers wait; those who wait for the aggregator do so later.
 */
export class AggregatorFailure implements StepFailure {
  readonly #failure: StepFailure;
  readonly #aggregator: AggregatorSlots;
  #progress = -1;
  #since = 0;

  constructor(failure: StepFailure, aggregator: AggregatorSlots) {
    this.#failure = failure;
    this.#aggregator = aggregator;
  }

  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    return this.#failure.reasonToGiveUp(missing, signal) ?? this.#stalled();
  }

  timeout(missing: Missing, timeoutMs: number, hint: string, details?: ErrorDetails): WeftlineError {
    return this.#failure.timeout(missing, timeoutMs, hint, details);
  }

  raise(error: unknown): void {
    this.#failure.raise(error);
  }

  reason(): WeftlineError | undefined {
    return this.#failure.reason();
  }

  rankOf(rank: number): number {
    return this.#failure.rankOf(rank);
  }

  #stalled(): WeftlineError | undefined {
    const aggregator = this.#aggregator;
    const now = performance.now();
    if (aggregator.isIdle || aggregator.progress !== this.#progress) {
      this.#progress = aggregator.progress;
      this.#since = now;
      return undefined;
    }
    const stalled = aggregator.stalled();
    if (stalled === undefined) return undefined;
    const { ranks, nets } = stalled;
    const patience = nthNet(aggregator.timeoutMs, nets);
    if (now - this.#since < patience) return undefined;
    const hint = 'the aggregator and other workers wait for it in a sparse allReduce; it lives, and may still compute';
    return this.#failure.timeout(() => ranks, patience, hint);
  }
}
