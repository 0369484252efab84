// How an agent waits for something that its backends will tell: blocking or not, always with a deadline.
import { WeftlineError } from '../core/errors.ts';
import { SpinTime } from '../threads/spin-time.ts';
import type { WakeWord } from '../threads/wake-word.ts';
import { involuntarySwitches, yieldProcessor } from '../native/libc.ts';
import { checkTimeout, type WaitOptions } from '../core/deadline.ts';
import { beginWait, endWait, type WaitEntry, type WaitFacts } from '../core/waits.ts';

/** What is waited for. `isSettled` is asked after each look at the backends. */
export interface Awaited {
  readonly isSettled: boolean;
  /** For the error of a wait that takes too long: "Transfer 3 of agent a to agent b by multipath did not end". */
  describe(): string;
  /** Who is missing, for those who ask meanwhile. */
  missing?(): Pick<WaitFacts, 'ranks' | 'peers'>;
}

export interface WaiterOptions {
  readonly wake: WakeWord;
  readonly timeoutMs: number;
  /** The most that a blocking wait polls before it sleeps, if it gains from that. */
  readonly spinUs: number;
  readonly prefersPolling: () => boolean;
  /** Looks at all backends. True if anything happened. */
  readonly poll: () => boolean;
  /** Does what other threads would have to do. True if there was anything. */
  readonly help: () => boolean;
  /** How long the agent may sleep before the next look, in ms; 0: not at all. */
  readonly prepareSleep: () => number;
  /** Blocks this thread for so many ms at most, or until a backend without a thread of its own has work. */
  readonly nap: (milliseconds: number) => void;
}

/** A wait looks at its deadline, at signals and at broken links at least this often. */
const SLICE_MS = 100;
/**
 * Shorter sleeps are not worth a timer: the event loop turns once instead, behind a nap where a backend takes one. A thread
 * that polls on end would keep its processor from the ranks that it waits for until its time slice is over.
 */
const SHORTEST_SLEEP_MS = 1;
/** A look at the clock costs as much as several looks at the backends. */
const LOOKS_PER_CLOCK = 16;
/** While threads of the agent itself bring what is waited for: they need the processor. */
const SHORT_SPIN_MS = 0.02;
/** A wait that polls for longer lets other threads go first: there may be more of them than processors. */
const SELFISH_MS = 0.01;

export class Waiter {
  readonly #options: WaiterOptions;
  readonly #spin: SpinTime;

  constructor(options: WaiterOptions) {
    this.#options = options;
    this.#spin = new SpinTime(options.spinUs);
  }

  /** Fails with WL_TIMEOUT, and with the signal's reason. What is waited for goes on. */
  async wait(awaited: Awaited, { timeoutMs = this.#options.timeoutMs, signal }: WaitOptions = {}): Promise<void> {
    const end = performance.now() + checkTimeout(timeoutMs);
    const { wake, poll, prepareSleep, nap } = this.#options;
    const onAbort = (): void => wake.ring();
    signal?.addEventListener('abort', onAbort);
    // Sleeping on a word does not keep the process alive; a wait must.
    const alive = setInterval(() => {}, 2 ** 30);
    let entry: WaitEntry | undefined;
    try {
      for (;;) {
        const { seen } = wake;
        const hasNews = poll();
        if (awaited.isSettled) return;
        entry ??= beginWait({ waitFacts: () => factsOf(awaited) }, end);
        signal?.throwIfAborted();
        const left = timeLeft(awaited, end, timeoutMs);
        const pause = hasNews ? 0 : Math.min(left, prepareSleep(), SLICE_MS);
        if (pause >= SHORTEST_SLEEP_MS) {
          await wake.sleep(seen, pause);
          continue;
        }
        if (pause > 0) nap(pause);
        await new Promise((resolve) => setImmediate(resolve));
      }
    } finally {
      if (entry !== undefined) endWait(entry);
      clearInterval(alive);
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** The same, but blocks this thread: answers sooner, while its timers and sockets stand still. Hot path: no allocation. */
  waitBlocking(awaited: Awaited, timeoutMs: number = this.#options.timeoutMs): void {
    checkTimeout(timeoutMs);
    this.#options.poll();
    if (awaited.isSettled) return;
    const { wake } = this.#options;
    wake.beginWait();
    try {
      this.#block(awaited, timeoutMs);
    } finally {
      wake.endWait();
    }
  }

  #block(awaited: Awaited, timeoutMs: number): void {
    const { wake, poll, help, prepareSleep } = this.#options;
    // The shortest waits are over before the first look at the clock.
    for (let looks = 1; looks < LOOKS_PER_CLOCK; looks += 1) {
      poll();
      if (awaited.isSettled) {
        this.#spin.learn(0);
        return;
      }
    }
    let start = performance.now();
    const end = start + timeoutMs;
    const spin = this.#spinTime();
    let spinEnd = start + spin;
    let isBusy = false;
    for (let looks = 1; ; looks += 1) {
      const { seen } = wake;
      isBusy = poll() || isBusy;
      if (awaited.isSettled) break;
      isBusy = help() || isBusy;
      if (looks % LOOKS_PER_CLOCK !== 0) continue;
      const now = performance.now();
      if (now >= end) throw tooLate(awaited, timeoutMs);
      if (isBusy) {
        // What comes next may come soon again.
        start = now;
        spinEnd = now + spin;
        isBusy = false;
        continue;
      }
      if (now < spinEnd) {
        if (now - start > SELFISH_MS && this.#lend(now)) spinEnd = now;
        continue;
      }
      const pause = Math.min(end - now, prepareSleep(), SLICE_MS);
      if (pause > 0) wake.sleepBlocking(seen, pause);
    }
    this.#spin.learn(performance.now() - start);
  }

  #spinTime(): number {
    const { milliseconds } = this.#spin;
    return this.#options.prefersPolling() ? milliseconds : Math.min(milliseconds, SHORT_SPIN_MS);
  }

  /** True if others kept the processor so long that this wait had better sleep. */
  #lend(now: number): boolean {
    const switches = involuntarySwitches();
    yieldProcessor();
    const away = performance.now() - now;
    // A hypervisor gives the processor to other machines, however little this one does: not to poll would not help.
    return this.#spin.isLong(away) && involuntarySwitches() !== switches && this.#spin.lent(away);
  }
}

function factsOf(awaited: Awaited): WaitFacts {
  return { operation: awaited.describe(), ...awaited.missing?.() };
}

function timeLeft(awaited: Awaited, end: number, timeoutMs: number): number {
  const left = end - performance.now();
  if (left <= 0) throw tooLate(awaited, timeoutMs);
  return left;
}

function tooLate(awaited: Awaited, timeoutMs: number): WeftlineError {
  return new WeftlineError('WL_TIMEOUT', `${awaited.describe()} within ${timeoutMs} ms`, {
    details: { ...awaited.missing?.(), timeoutMs },
  });
}
