// The point in time at which a call gives up: all its stages share it, instead of each starting the time anew.
import { invalidArgument } from './errors.ts';

export class Deadline {
  /** What the call as a whole was given, for errors. */
  readonly timeoutMs: number;
  readonly #at: number;

  /** Fails with WL_INVALID_ARGUMENT for what checkTimeout() refuses. */
  constructor(timeoutMs: number) {
    this.timeoutMs = checkTimeout(timeoutMs);
    this.#at = performance.now() + timeoutMs;
  }

  /** Never negative. */
  get leftMs(): number {
    return Math.max(0, this.#at - performance.now());
  }

  get isOver(): boolean {
    return this.leftMs === 0;
  }
}

/** How a stage of a call waits. The deadline is that of the call; without one, the stage is a call of its own. */
export interface CallWait {
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly deadline?: Deadline | undefined;
}

/** To be called first in every call that has more than one stage: its options with the deadline that the stages share. */
export function startCall<T extends CallWait>(options: T, defaultMs: number): T & { readonly deadline: Deadline } {
  return { ...options, deadline: deadlineOf(options, defaultMs) };
}

export function deadlineOf({ deadline, timeoutMs }: CallWait, defaultMs: number): Deadline {
  return deadline ?? new Deadline(timeoutMs ?? defaultMs);
}

/** What is left of the call's time, for functions that take a duration. To be called right before them. */
export function remaining(wait: CallWait): { readonly timeoutMs?: number; readonly signal?: AbortSignal } {
  const timeoutMs = wait.deadline === undefined ? wait.timeoutMs : Math.ceil(wait.deadline.leftMs);
  return {
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(wait.signal === undefined ? {} : { signal: wait.signal }),
  };
}

/** Fails with WL_INVALID_ARGUMENT for what no timer can hold, NaN and infinity among it: a wait must end. */
export function checkTimeout(timeoutMs: number): number {
  if (typeof timeoutMs === 'number' && timeoutMs >= 0 && timeoutMs < 2 ** 31) return timeoutMs;
  throw invalidArgument('timeoutMs', timeoutMs, 'a number of milliseconds from 0 to 2147483647');
}
