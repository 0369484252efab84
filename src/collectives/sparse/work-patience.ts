// How long a call waits for work of a GPU that does not come to its end.
import { WeftlineError } from '../../core/errors.ts';
import type { WorkMark } from './block-work.ts';

export class WorkPatience {
  /** Since when marks are waited for that are not done. */
  readonly #since = new Map<WorkMark, number>();

  /** A call begins. */
  reset(): void {
    this.#since.clear();
  }

  /** Hot path. Whether the work is done; fails with WL_TIMEOUT when it has been asked for so long. */
  isDone(mark: WorkMark, timeoutMs: number): boolean {
    if (mark.isDone()) {
      this.#since.delete(mark);
      return true;
    }
    const now = performance.now();
    const since = this.#since.get(mark);
    if (since === undefined) this.#since.set(mark, now);
    if (now - (since ?? now) < timeoutMs) return false;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `The GPU has not moved the blocks of a sparse allReduce within ${timeoutMs} ms: earlier work of device.stream may hold it up, or a kernel that polls the flag and leaves no multiprocessor free`,
      { details: { timeoutMs } },
    );
  }
}
