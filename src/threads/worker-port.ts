// The thread's end of a WorkerLink: carries out calls, answers them, reports events.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { bindDeclaredFunctions } from '../native/library.ts';
import { type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';

/**
 * What a thread does when it is called, by name. A call takes at most one argument, plain data, and a signal that is aborted
 * once nobody waits for its result any more. Every table has `stop`, the last call, after which the thread's work ends.
 */
export interface Calls {
  stop(): unknown;
}

/** A call by its name. Fails with WL_INTERNAL if there is none of that name. */
export function findCall(calls: Calls, name: string): (argument: unknown, signal: AbortSignal) => unknown {
  const method: unknown = Reflect.get(calls, name);
  if (typeof method !== 'function') throw new WeftlineError('WL_INTERNAL', `There is no call "${name}"`);
  return (argument, signal) => Reflect.apply(method, calls, [argument, signal]);
}

export type ToThread =
  | { readonly id: number; readonly name: string; readonly argument: unknown }
  /** Nobody waits for the call's result any more. */
  | { readonly cancelled: number };

export type FromThread<Event> =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: EncodedError }
  | { readonly event: Event }
  /** The last message of a thread that failed. */
  | { readonly crash: EncodedError };

export class WorkerPort<Event = never> {
  readonly #port: MessagePort;
  /** Calls that go on after they returned. */
  readonly #running = new Map<number, AbortController>();
  #isStopped = false;

  /** Keeps the thread's work going until `close()`, or until `stop` was answered. */
  constructor(port: MessagePort) {
    bindDeclaredFunctions();
    this.#port = port;
  }

  /** True from the call of `stop` on. */
  get isStopped(): boolean {
    return this.#isStopped;
  }

  /** Carries out calls as they come, between other events of the thread. */
  serve(calls: Calls): void {
    this.#port.on('message', (message: ToThread) => this.#take(calls, message));
  }

  /**
   * Carries out the calls that have come, each after `before`, for threads that do not return to their event loop. Their
   * results are no promises.
   */
  serveNow(calls: Calls, before: () => void): void {
    for (let next = receiveMessageOnPort(this.#port); next !== undefined; next = receiveMessageOnPort(this.#port)) {
      before();
      this.#take(calls, next.message as ToThread);
    }
  }

  /** Tells the other side something that it did not ask for. */
  send(event: Event): void {
    this.#post({ event });
  }

  /** The thread cannot go on, and returns next. */
  crash(error: unknown): void {
    this.#post({ crash: encodeError(error) });
    this.close();
  }

  close(): void {
    this.#port.close();
  }

  #take(calls: Calls, message: ToThread): void {
    if ('cancelled' in message) {
      this.#running.get(message.cancelled)?.abort();
      return;
    }
    const { id, name, argument } = message;
    // A name that is none is a defect of the caller: the thread ends of it.
    const carryOut = findCall(calls, name);
    const isLast = name === 'stop';
    if (isLast) this.#isStopped = true;
    const answer = (reply: { readonly result: unknown } | { readonly error: EncodedError }): void => {
      this.#running.delete(id);
      this.#post({ id, ...reply });
      // One that could not stop in good order must not stay, for the other side waits for its end.
      if (isLast) this.close();
    };
    const controller = new AbortController();
    try {
      const result = carryOut(argument, controller.signal);
      if (!(result instanceof Promise)) {
        answer({ result });
        return;
      }
      this.#running.set(id, controller);
      result.then(
        (value: unknown) => answer({ result: value }),
        (error: unknown) => answer({ error: encodeError(error) }),
      );
    } catch (error) {
      answer({ error: encodeError(error) });
    }
  }

  #post(message: FromThread<Event>): void {
    this.#port.postMessage(message);
  }
}
