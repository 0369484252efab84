// The point in time at which a call gives up: all its stages share it, instead of each starting the time anew.
import type { OptionNames } from './check-options.ts';
import { invalidArgument } from './errors.ts';
import { beginWait, endWait } from './waits.ts';

export class Deadline {
  /** What the call as a whole was given, for errors. */
  readonly timeoutMs: number;
  readonly #at: number;

  /** Fails with WL_INVALID_ARGUMENT for what checkTimeout() refuses. */
  constructor(timeoutMs: number, endsAt?: number) {
    this.timeoutMs = checkTimeout(timeoutMs);
    this.#at = endsAt ?? performance.now() + timeoutMs;
  }

  /** Ends a little before this one: of a wait that knows better whom it waits for than those that wait for it. */
  sooner(): Deadline {
    return new Deadline(this.timeoutMs, this.#at - Math.min(this.timeoutMs * SOONER_PART, SOONER_MS));
  }

  /** End on the clock of performance.now(). */
  get endsAt(): number {
    return this.#at;
  }

  /** Never negative. */
  get leftMs(): number {
    return Math.max(0, this.#at - performance.now());
  }

  get isOver(): boolean {
    return this.leftMs === 0;
  }
}

const SOONER_PART = 0.1;
const SOONER_MS = 1000;

/** How long a wait of the public interface may last. */
export interface WaitOptions {
  /** How long to wait, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number;
  /** Ends the wait early; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
}

export const waitOptionNames: OptionNames<WaitOptions> = { timeoutMs: true, signal: true };

/** How a call waits, or a stage of one. */
export interface CallWait {
  /** How long to wait, in ms; by default the setting `timeoutMs`. */
  readonly timeoutMs?: number | undefined;
  /** Ends the wait early; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Deadline of the call that this is a stage of, in place of `timeoutMs`; without one, the stage is a call of its own.
   * @internal
   */
  readonly deadline?: Deadline | undefined;
}

export const callWaitNames: OptionNames<CallWait> = { ...waitOptionNames, deadline: true };

/** Must be called first in every call that has more than one stage: its options with the deadline that the stages share. */
export function startCall<T extends CallWait>(options: T, defaultMs: number): T & { readonly deadline: Deadline } {
  return { ...options, deadline: deadlineOf(options, defaultMs) };
}

/** A wait for ranks of other hosts, while ranks of this host wait for this one in a barrier, ends a little sooner. */
export function sooner<T extends CallWait>(wait: T): T {
  return wait.deadline === undefined ? wait : { ...wait, deadline: wait.deadline.sooner() };
}

export function deadlineOf({ deadline, timeoutMs, signal }: CallWait, defaultMs: number): Deadline {
  checkSignal(signal);
  if (deadline === undefined) return new Deadline(timeoutMs ?? defaultMs);
  if (deadline instanceof Deadline) return deadline;
  throw invalidArgument('deadline', deadline, 'none, as only this package makes them: give timeoutMs');
}

/** Fails with WL_INVALID_ARGUMENT for what can abort nothing. */
export function checkSignal(signal: unknown): void {
  if (signal === undefined || signal instanceof AbortSignal) return;
  throw invalidArgument('signal', signal, 'an AbortSignal');
}

/** What is left of the call's time, for functions that take a duration. To be called right before them. */
export function remaining(wait: CallWait): { readonly timeoutMs?: number; readonly signal?: AbortSignal } {
  const timeoutMs = wait.deadline === undefined ? wait.timeoutMs : Math.ceil(wait.deadline.leftMs);
  return {
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(wait.signal === undefined ? {} : { signal: wait.signal }),
  };
}

/**
 * Settles as the promise does, but fails at the deadline with what `late` makes, and with the signal's reason when that is
 * aborted. What it waits for goes on.
 */
export function within<T>(
  promise: Promise<T>,
  { deadline, signal }: CallWait & { readonly deadline: Deadline },
  late: () => Error,
): Promise<T> {
  signal?.throwIfAborted();
  // What it would fail with says best what it waits for.
  const entry = beginWait({ waitFacts: () => ({ operation: late().message }) }, deadline.endsAt);
  return new Promise((resolve, reject) => {
    const settle = (act: () => void): void => {
      endWait(entry);
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
      act();
    };
    const abort = (): void => settle(() => reject(signal?.reason as Error));
    signal?.addEventListener('abort', abort);
    const timer = setTimeout(() => settle(() => reject(late())), deadline.leftMs);
    promise.then(
      (value) => settle(() => resolve(value)),
      (error: unknown) => settle(() => reject(error)),
    );
  });
}

/** Timers that are given more fire at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;
const SECOND_NET_SHARE = 0.1;
const MIN_SECOND_NET_MS = 250;
const MAX_SECOND_NET_MS = 2_000;

/**
 * When to give up on a peer that gives up by itself after `timeoutMs`: a little later, because its error says more. At most
 * what a timer holds.
 */
export function secondNet(timeoutMs: number): number {
  const later = Math.min(MAX_SECOND_NET_MS, Math.max(MIN_SECOND_NET_MS, timeoutMs * SECOND_NET_SHARE));
  return Math.min(timeoutMs + later, MAX_TIMER_MS);
}

/** Fails with WL_INVALID_ARGUMENT for what no timer can hold, NaN and infinity among it: a wait must end. */
export function checkTimeout(timeoutMs: number): number {
  if (typeof timeoutMs === 'number' && timeoutMs >= 0 && timeoutMs <= MAX_TIMER_MS) return timeoutMs;
  throw invalidArgument('timeoutMs', timeoutMs, 'a number of milliseconds from 0 to 2147483647');
}
