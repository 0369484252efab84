// How long an engine's thread that has nothing to do goes on polling while somebody waits for what it does.
import { ProcessorLoans, SpinTime } from '../../threads/spin-time.ts';

/** The most; less where it turns out to be in vain. */
const MAX_SPIN_MICROSECONDS = 300;
const NOT_IDLE = -1;

/**
 * On machines with few processors the one who waits runs on the processor that the engine needs, or the other way round:
 * each lends it to the other between two looks, which costs less than to sleep and be woken.
 */
export class Idleness {
  readonly #isAwaited: () => boolean;
  readonly #spin = new SpinTime(MAX_SPIN_MICROSECONDS);
  readonly #loans = new ProcessorLoans();
  #since = NOT_IDLE;
  #pollsUntil = 0;

  /** `isAwaited`: true while a thread does nothing but wait for the engine. */
  constructor(isAwaited: () => boolean) {
    this.#isAwaited = isAwaited;
  }

  /** Hot path. There was something to do. */
  end(): void {
    if (this.#since === NOT_IDLE) return;
    this.#spin.learn(performance.now() - this.#since);
    this.#since = NOT_IDLE;
  }

  /** Hot path. There was nothing to do. False: the thread may sleep; true: it had better look again, others went first. */
  polls(): boolean {
    const now = performance.now();
    if (this.#since === NOT_IDLE) {
      this.#since = now;
      this.#pollsUntil = this.#spin.isShort ? now : now + this.#spin.milliseconds;
    }
    if (now >= this.#pollsUntil || !this.#isAwaited()) return false;
    if (this.#spin.lent(this.#loans.lend(now) - now)) this.#pollsUntil = now;
    return true;
  }
}
