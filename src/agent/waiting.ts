// How an agent waits for something that its backends will tell: blocking or not, always with a deadline.
import { WeftlineError } from '../core/errors.ts';
import { SpinTime } from '../threads/spin-time.ts';
import type { WakeWord } from '../threads/wake-word.ts';
import { involuntarySwitches, yieldProcessor } from '../native/libc.ts';
import { checkSignal, checkTimeout, type WaitOptions } from '../core/deadline.ts';
import { beginWait, endWait, type WaitEntry, type WaitFacts } from '../core/waits.ts';
import type { BackendSet } from './backends/backend-table.ts';

/** What is waited for. `isSettled` is asked after each look at the backends. */
export interface Awaited {
  readonly isSettled: boolean;
  /** The begin of the error of a wait that takes too long: "Transfer 3 of agent a to agent b by multipath did not end". */
  describe(): string;
  /** Tells those who ask meanwhile who is missing. */
  missing?(): Pick<WaitFacts, 'ranks' | 'peers'>;
}

interface WaiterOptions {
  readonly wake: WakeWord;
  readonly timeoutMs: number;
  /** The most that a blocking wait polls before it sleeps, if it gains from that. */
  readonly spinUs: number;
  /** Looks at all backends and transfers. True if anything happened. */
  readonly poll: () => boolean;
  readonly set: Pick<BackendSet, 'prefersPolling' | 'help' | 'prepareSleep' | 'nap'>;
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
    checkSignal(signal);
    const { wake, poll, set } = this.#options;
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
        const waitFacts = (): WaitFacts => ({ operation: awaited.describe(), ...awaited.missing?.() });
        entry ??= beginWait({ waitFacts }, end);
        signal?.throwIfAborted();
        const left = end - performance.now();
        if (left <= 0) throw tooLate(awaited, timeoutMs);
        const pause = hasNews ? 0 : Math.min(left, set.prepareSleep(), SLICE_MS);
        if (pause >= SHORTEST_SLEEP_MS) {
          await wake.sleep(seen, pause);
          continue;
        }
        if (pause > 0) set.nap(pause);
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
    const { wake, poll, set } = this.#options;
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
    const { milliseconds } = this.#spin;
    const spin = set.prefersPolling ? milliseconds : Math.min(milliseconds, SHORT_SPIN_MS);
    let spinEnd = start + spin;
    let isBusy = false;
    for (let looks = 1; ; looks += 1) {
      const { seen } = wake;
      isBusy = poll() || isBusy;
      if (awaited.isSettled) break;
      isBusy = set.help() || isBusy;
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
      const pause = Math.min(end - now, set.prepareSleep(), SLICE_MS);
      if (pause > 0) wake.sleepBlocking(seen, pause);
    }
    this.#spin.learn(performance.now() - start);
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

function tooLate(awaited: Awaited, timeoutMs: number): WeftlineError {
  return new WeftlineError('WL_TIMEOUT', `${awaited.describe()} within ${timeoutMs} ms`, {
    details: { ...awaited.missing?.(), timeoutMs },
  });
}
