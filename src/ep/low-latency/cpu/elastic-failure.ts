// What ends a wait of an elastic EpLowLatency: not a rank that is lost or late, which is masked, but this rank's own state.
import type { StepFailure } from '../../../collective/steps.ts';
import { asWeftlineError, type WeftlineError } from '../../../core/errors.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { Missing } from '../../../windows/window-failure.ts';
import type { LowLatencyMembers } from '../members/low-latency-members.ts';

export class ElasticFailure implements StepFailure {
  readonly #window: SymmetricWindow;
  readonly #members: LowLatencyMembers;
  /** The view that the present wait has seen, and until when it has patience with it. */
  #epoch = 0;
  #patientUntil = 0;
  /** This rank's last dispatch. */
  #dispatch = 0;

  constructor(window: SymmetricWindow, members: LowLatencyMembers) {
    this.#window = window;
    this.#members = members;
  }

  /** Hot path. A wait begins, in which this rank takes part as of that dispatch. */
  begin(dispatch: number): void {
    this.#dispatch = dispatch;
    this.#epoch = this.#members.epoch;
    this.#patientUntil = 0;
  }

  rankOf(index: number): number {
    return this.#window.barrier.failure.rankOf(index);
  }

  reason(): WeftlineError | undefined {
    return this.#window.barrier.failure.reason();
  }

  /** Ranks whose process has ended are masked at once. */
  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    const reason = this.reason();
    if (reason !== undefined) return reason;
    if (signal?.aborted) return signal.reason;
    for (const rank of missing()) if (!this.#window.isAlive(rank)) this.#members.mask(rank);
    return this.#members.inactive(this.#dispatch);
  }

  /** At the deadline the missing ranks are masked. If others were meanwhile, the missing ones may have waited for those. */
  excuse(missing: Missing, timeoutMs: number): boolean {
    const { epoch } = this.#members;
    const now = performance.now();
    if (epoch !== this.#epoch) {
      this.#epoch = epoch;
      this.#patientUntil = now + timeoutMs;
    }
    if (now < this.#patientUntil) return true;
    for (const rank of missing()) this.#members.mask(rank);
    return true;
  }

  timeout(...args: Parameters<StepFailure['timeout']>): WeftlineError {
    return this.#window.barrier.failure.timeout(...args);
  }

  /** Ranks in different calls have no way on together; any other failure is this rank's own, and the others go on. */
  raise(error: unknown): void {
    if (asWeftlineError(error).code === 'WL_CONFIG_MISMATCH') this.#window.barrier.failure.raise(error);
    else this.#members.mask(this.#window.index);
  }
}
