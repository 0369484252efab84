// Which ranks take part in an elastic EpLowLatency: what callers see of it, and what an engine offers for it.
import type { Deadline, WaitOptions } from '../../core/deadline.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { LowLatencyHandle } from './low-latency-handle.ts';

/** Who takes part. All ranks see the same, but for changes that are under way. */
export interface LowLatencyView {
  /** Grows with every change; the same number is the same view. */
  readonly epoch: number;
  /** By rank: takes part in the next dispatch. */
  readonly active: readonly boolean[];
  /** By rank: has mapped the window and waits to become active. */
  readonly connected: readonly boolean[];
}

/** How connectRanks() waits, and what it does then. */
export interface ConnectOptions extends WaitOptions {
  /** True (default): the ranks become active. False: they stay connected until commit(). */
  readonly activate?: boolean;
}

/** Dispatches from a decision until the ranks that it concerns join or leave: every rank hears of it before that. */
export const LOW_LATENCY_NOTICE = 8;

/** Of a combine: what it had to do without. Valid as long as the handle. */
export interface LowLatencyShortfall {
  /** i32 [ranks]: 1 where the rank's sums are in the result. */
  readonly activeMask: Tensor<'i32'>;
  /** i32 [T]: choices of each token whose experts are on ranks without. */
  readonly droppedChoices: Tensor<'i32'>;
}

/** How long a rank waits for others to come. */
export interface MembershipWait {
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
}

/** Ranks here are those of the group; `next` is the number of this rank's next dispatch. */
export interface LowLatencyMembership {
  view(next: number): LowLatencyView;
  /** Of the last combine with that handle. */
  shortfall(handle: LowLatencyHandle): LowLatencyShortfall;
  /** From now on nobody waits for the rank, nor reads its rows. */
  mask(rank: number): void;
  /** Resolves once all of these ranks are connected; then, with `activate`, they join. */
  connect(ranks: readonly number[], activate: boolean, wait: MembershipWait): Promise<void>;
  /** They leave after the notice. */
  disconnect(ranks: readonly number[], next: number): void;
  /** All ranks that are connected join after the notice. */
  commit(next: number): void;
  /** Of a rank that is not active: offers itself and resolves to the number of its next dispatch once it is. */
  rejoin(wait: MembershipWait): Promise<number>;
}
