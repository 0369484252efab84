// A flag in memory of a GPU: parts that are done together are added in one go, behind the sums of these parts.
import type { CompletionFlag } from './block-reducer.ts';

interface StagedFlagWork {
  /** Adds behind all sums that were taken in so far. */
  tell(parts: number): void;
  /** What the device does next follows what was told. */
  join(): void;
}

export class StagedFlag implements CompletionFlag {
  readonly #work: StagedFlagWork;
  #untold = 0;
  #isJoined = true;

  constructor(work: StagedFlagWork) {
    this.#work = work;
  }

  block(): boolean {
    this.#untold++;
    return true;
  }

  poll(): void {
    if (this.#untold === 0) return;
    this.#work.tell(this.#untold);
    this.#untold = 0;
    this.#isJoined = false;
  }

  /** Asked when all parts were told. */
  get isDone(): boolean {
    if (!this.#isJoined) this.#work.join();
    this.#isJoined = true;
    return true;
  }
}
