// The time of a simulation in place of this process's own: what the code that runs in it reads as the time, and its timers.

/** Calls an action at a time, in microseconds. */
type Schedule = (time: number, action: () => void) => void;

interface Timer {
  isOver: boolean;
  ref(): Timer;
  unref(): Timer;
  hasRef(): boolean;
}

/**
 * Deadlines are read from performance.now() all over the library, on hot paths too. A clock that could be exchanged would cost
 * every one of those reads; here the process has another one while a simulation runs.
 */
export class VirtualClock implements Disposable {
  readonly #now: () => number;
  readonly #schedule: Schedule;
  readonly #own = { setTimeout: globalThis.setTimeout, clearTimeout: globalThis.clearTimeout };

  /** `now` in microseconds. The process has its own clock again when this is disposed. */
  constructor(now: () => number, schedule: Schedule) {
    this.#now = now;
    this.#schedule = schedule;
    Object.defineProperty(performance, 'now', { value: () => now() / 1000, configurable: true });
    const timers = {
      setTimeout: (action: () => void, milliseconds = 0) => this.after(milliseconds * 1000, action),
      clearTimeout: (timer: Timer | undefined) => {
        if (timer !== undefined) timer.isOver = true;
      },
    };
    Object.assign(globalThis, timers);
  }

  /** Calls the action after so many microseconds, unless its timer is over by then. */
  after(microseconds: number, action: () => void): Timer {
    const timer: Timer = { isOver: false, ref: () => timer, unref: () => timer, hasRef: () => true };
    this.#schedule(this.#now() + microseconds, () => {
      if (timer.isOver) return;
      timer.isOver = true;
      action();
    });
    return timer;
  }

  [Symbol.dispose](): void {
    Reflect.deleteProperty(performance, 'now');
    Object.assign(globalThis, this.#own);
  }
}
