// Carries out the calls of an object one after the other, in the order of their posting, where they overlap.
import { WeftlineError } from '../core/errors.ts';
import type { CallGuard } from './call-guard.ts';

/**
 * Of an object whose calls may be posted before earlier ones have ended. Whether an earlier one has ended is a matter of time
 * and differs between the ranks; that calls are carried out in order does not. Nothing is made for calls that do not overlap.
 */
export class CallQueue {
  readonly #object: string;
  readonly #guard: CallGuard;
  /** The last call that was posted; of meaning only while the queue is busy. */
  #last: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  #closing: Promise<void> | undefined;

  /** `object` is its name in errors. */
  constructor(object: string, guard: CallGuard) {
    this.#object = object;
    this.#guard = guard;
  }

  /** Hot path. Whether what is posted now must wait for its turn. */
  get isBusy(): boolean {
    return this.#waiting > 0 || this.#guard.isRunning;
  }

  /** Fails with WL_CLOSED from the posting of close() on, though calls that were posted before may still wait. */
  requireOpen(): void {
    if (this.#closing !== undefined) throw new WeftlineError('WL_CLOSED', `This ${this.#object} was closed`);
  }

  /** Fails while a call runs or waits. */
  requireIdle(name: string): void {
    this.#guard.requireIdle(name);
    if (this.#waiting === 0) return;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Cannot start ${name} on this ${this.#object}: ${this.#waiting} of its calls wait for their turn; await them first`,
    );
  }

  /** Hot path. Of a call at its posting, never at its turn, when others may wait behind it: what is posted next waits for it. */
  follow<T>(call: Promise<T>): Promise<T> {
    this.#last = call;
    return call;
  }

  /** Begins the call now if nothing is before it, else when that has ended. If that fails, the call fails with the same error and never begins. */
  post<T>(begin: () => Promise<T>): Promise<T> {
    return this.follow(this.isBusy ? this.#inTurn(begin, this.#last) : begin());
  }

  /** Carried out behind all calls that were posted before, however they end. */
  close(end: () => Promise<void>): Promise<void> {
    this.#closing ??= this.isBusy
      ? this.#inTurn(
          end,
          this.#last.catch(() => undefined),
        )
      : end();
    return this.#closing;
  }

  #inTurn<T>(begin: () => Promise<T>, before: Promise<unknown>): Promise<T> {
    this.#waiting += 1;
    return before.then(
      () => {
        this.#waiting -= 1;
        return begin();
      },
      (error: unknown) => {
        this.#waiting -= 1;
        throw error;
      },
    );
  }
}
