// How an agent waits for something that its backends will tell: blocking or not, always with a deadline.
import { WeftlineError } from '../core/errors.ts';
import type { WakeWord } from '../core/wake-word.ts';
import { checkTimeout, type WaitOptions } from '../world/store.ts';

/** What is waited for. `isSettled` is asked after each look at the backends. */
export interface Awaited {
  readonly isSettled: boolean;
  /** For the error of a wait that takes too long: "Transfer 3 of agent a to agent b by multipath did not end". */
  describe(): string;
}

export interface WaiterOptions {
  readonly wake: WakeWord;
  readonly timeoutMs: number;
  readonly spinMicroseconds: number;
  /** Looks at all backends. True if anything happened. */
  readonly poll: () => boolean;
  /** How long the agent may sleep before the next look, in ms; 0: not at all. */
  readonly prepareSleep: () => number;
}

/** A wait looks at its deadline, at signals and at broken links at least this often. */
const SLICE_MS = 100;
/** Shorter sleeps are not worth a timer: the event loop turns once instead. */
const SHORTEST_SLEEP_MS = 1;

export class Waiter {
  readonly #options: WaiterOptions;

  constructor(options: WaiterOptions) {
    this.#options = options;
  }

  /** Fails with WL_TIMEOUT, and with the signal's reason. What is waited for goes on. */
  async wait(awaited: Awaited, { timeoutMs = this.#options.timeoutMs, signal }: WaitOptions = {}): Promise<void> {
    const end = performance.now() + checkTimeout(timeoutMs);
    const { wake, poll, prepareSleep } = this.#options;
    const onAbort = (): void => wake.ring();
    signal?.addEventListener('abort', onAbort);
    // Sleeping on a word does not keep the process alive; a wait must.
    const alive = setInterval(() => {}, 2 ** 30);
    try {
      for (;;) {
        const { seen } = wake;
        const hasNews = poll();
        if (awaited.isSettled) return;
        signal?.throwIfAborted();
        const left = timeLeft(awaited, end, timeoutMs);
        const pause = hasNews ? 0 : Math.min(left, prepareSleep(), SLICE_MS);
        if (pause < SHORTEST_SLEEP_MS) await new Promise((resolve) => setImmediate(resolve));
        else await wake.sleep(seen, pause);
      }
    } finally {
      clearInterval(alive);
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** The same, but blocks this thread: answers sooner, while its timers and sockets stand still. Hot path: no allocation. */
  waitBlocking(awaited: Awaited, timeoutMs: number = this.#options.timeoutMs): void {
    const { wake, poll, prepareSleep, spinMicroseconds } = this.#options;
    const start = performance.now();
    const end = start + checkTimeout(timeoutMs);
    const spinEnd = start + spinMicroseconds / 1000;
    for (;;) {
      const { seen } = wake;
      const hasNews = poll();
      if (awaited.isSettled) return;
      const now = performance.now();
      if (hasNews || now < spinEnd) continue;
      if (now >= end) throw tooLate(awaited, timeoutMs);
      const pause = Math.min(end - now, prepareSleep(), SLICE_MS);
      if (pause > 0) wake.sleepBlocking(seen, pause);
    }
  }
}

function timeLeft(awaited: Awaited, end: number, timeoutMs: number): number {
  const left = end - performance.now();
  if (left <= 0) throw tooLate(awaited, timeoutMs);
  return left;
}

function tooLate(awaited: Awaited, timeoutMs: number): WeftlineError {
  return new WeftlineError('WL_TIMEOUT', `${awaited.describe()} within ${timeoutMs} ms`, { details: { timeoutMs } });
}
