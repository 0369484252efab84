// A thread of the library as its owner sees it: calls with answers and deadlines, events, and how it ended.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { secondNet } from '../core/deadline.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import { beginWait, endWait, type WaitFacts } from '../core/waits.ts';
import { bindDeclaredFunctions } from '../native/library.ts';
import { PooledWork, takeMessages } from './thread-pool.ts';

export interface WorkerLinkOptions<Event> {
  /** The module that the thread runs. Its `run(data, port)` serves calls with a WorkerPort over the port. */
  readonly entry: URL;
  /** What debuggers show. */
  readonly name: string;
  /** How errors call the thread: "thread that serves the command queues". */
  readonly what: string;
  /** Says that the owner was closed, for calls that come later: "The transport was closed". */
  readonly closedMessage: string;
  /** What `run` is given, plain. */
  readonly data: unknown;
  /** How long a call may take before the thread should fail it itself, in ms. The link gives up a little later. */
  readonly timeoutMs: number;
  /** What a thread that does not answer may be waiting for, for errors. */
  readonly lateReason?: string;
  /** Called after each call was posted: wakes a thread that does not wait for messages. */
  readonly onCall?: () => void;
  /** Hears what the thread tells unasked. */
  readonly onEvent: (event: Event) => void;
  /** Called once if the thread ends without having been told to. Calls that wait fail with the same error. */
  readonly onEnd: (error: WeftlineError) => void;
}

interface CallOptions {
  /** Ends the wait: the call rejects with the signal's reason, and the thread is told that nobody waits. */
  readonly signal?: AbortSignal | undefined;
  /** How long this call may take, in ms, in place of the link's `timeoutMs`. Checked by the caller. */
  readonly timeoutMs?: number | undefined;
  /** A thread that does not answer in time is ended. */
  readonly endsThread?: boolean;
}

interface LateCall {
  readonly name: string;
  readonly timeoutMs: number;
  readonly endsThread: boolean;
}

interface PendingCall {
  readonly name: string;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Stops the timer and the signal. */
  readonly release: () => void;
}

export type ResultOf<Table, Name extends keyof Table> = Table[Name] extends (...argument: never[]) => infer Result
  ? Awaited<Result>
  : never;
/** The call's argument, without the signal. */
export type ArgumentOf<Table, Name extends keyof Table> = Table[Name] extends () => unknown
  ? []
  : Table[Name] extends (argument: infer Argument, signal: AbortSignal) => unknown
    ? [argument: Argument]
    : never;

/** The process stays alive while calls wait for answers, not for the thread itself. */
export class WorkerLink<Table extends Calls, Event = never> {
  readonly #options: WorkerLinkOptions<Event>;
  readonly #work: PooledWork;
  readonly #port: MessagePort;
  readonly #calls = new Map<number, PendingCall>();
  #failure: WeftlineError | undefined;
  #stopping: Promise<void> | undefined;
  #nextCall = 1;

  constructor(options: WorkerLinkOptions<Event>) {
    const { entry, name, data } = options;
    this.#options = options;
    const onMessage = (message: unknown): void => this.#handle(message as FromThread<Event>);
    this.#work = new PooledWork({ entry, name, data, onMessage, onEnd: (cause) => this.#ended(cause) });
    this.#port = this.#work.port;
    this.#work.unref();
  }

  /** Why the thread takes no calls; undefined while it does. */
  get failure(): WeftlineError | undefined {
    return this.#failure;
  }

  /**
   * Has the thread carry out a call. Fails with what the thread throws, with WL_TIMEOUT if it does not answer, with
   * `failure` if it ends.
   */
  call<Name extends keyof Table & string>(
    name: Name,
    ...argument: ArgumentOf<Table, Name>
  ): Promise<ResultOf<Table, Name>> {
    return this.callWith({}, name, ...argument);
  }

  /** The same with a time of its own, a way to end the wait early, or the thread. */
  callWith<Name extends keyof Table & string>(
    options: CallOptions,
    name: Name,
    ...argument: ArgumentOf<Table, Name>
  ): Promise<ResultOf<Table, Name>> {
    return this.#send(name, argument[0], options) as Promise<ResultOf<Table, Name>>;
  }

  #send(name: string, argument: unknown, options: CallOptions): Promise<unknown> {
    const { signal, timeoutMs = this.#options.timeoutMs, endsThread = false } = options;
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    if (signal?.aborted === true) return Promise.reject(signal.reason as Error);
    const id = this.#nextCall++;
    try {
      this.#post({ id, name, argument });
    } catch (cause) {
      // Structured cloning refused it before anything was sent.
      const why = cause instanceof Error ? cause.message : String(cause);
      const message = `Cannot call ${name} of the ${this.#options.what}: what it is given cannot be sent to a thread: ${why}`;
      return Promise.reject(new WeftlineError('WL_INVALID_ARGUMENT', message, { details: { call: name }, cause }));
    }
    return new Promise((resolve, reject) => {
      if (this.#calls.size === 0) this.#port.ref();
      const giveUp = (): void => this.#giveUp(id, { name, timeoutMs, endsThread });
      const timer = setTimeout(giveUp, secondNet(timeoutMs));
      const abort = (): void => this.#abandon(id, signal?.reason);
      signal?.addEventListener('abort', abort);
      const waitFacts = (): WaitFacts => ({ operation: `call ${name} of the ${this.#options.what}` });
      const entry = beginWait({ waitFacts }, performance.now() + timeoutMs);
      const release = (): void => {
        endWait(entry);
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
      };
      this.#calls.set(id, { name, resolve, reject, release });
    });
  }

  /** Hands on now what has arrived, without a turn of the event loop. */
  readMessages(): void {
    takeMessages(this.#port, (message) => this.#handle(message as FromThread<Event>));
  }

  /**
   * Calls `stop` and waits until the thread has ended; calls fail with WL_CLOSED from then on. Idempotent. Fails with what
   * `stop` throws; with WL_TIMEOUT when the thread does not answer, which is then ended.
   */
  stop(): Promise<void> {
    if (this.#failure !== undefined) return Promise.resolve();
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    try {
      await this.#send('stop', undefined, { endsThread: true });
    } finally {
      const isEnded = this.#failure !== undefined;
      this.#failure ??= this.#closed();
      if (!isEnded) {
        this.#work.ref();
        await this.#work.over;
      }
    }
  }

  #post(message: ToThread): void {
    this.#port.postMessage(message);
    this.#options.onCall?.();
  }

  #giveUp(id: number, { name, timeoutMs, endsThread }: LateCall): void {
    const { what, lateReason } = this.#options;
    const why = lateReason === undefined ? '' : `: ${lateReason}`;
    const error = new WeftlineError('WL_TIMEOUT', `The ${what} did not answer within ${timeoutMs} ms (${name})${why}`, {
      details: { call: name, timeoutMs },
    });
    if (endsThread) {
      this.#failure ??= error;
      this.#work.terminate();
    }
    this.#abandon(id, error);
  }

  #abandon(id: number, reason: unknown): void {
    const pending = this.#take(id);
    if (this.#failure === undefined) this.#post({ cancelled: id });
    pending?.reject(reason);
  }

  #take(id: number): PendingCall | undefined {
    const pending = this.#calls.get(id);
    pending?.release();
    this.#calls.delete(id);
    if (this.#calls.size === 0) this.#port.unref();
    return pending;
  }

  #handle(message: FromThread<Event>): void {
    if ('event' in message) this.#options.onEvent(message.event);
    else if ('crash' in message) {
      this.#work.spoil();
      this.#ended(decodeError(message.crash));
    } else if ('error' in message) {
      const call = this.#take(message.id);
      // Now, not when stop() hears of it: the pool may be told in the same turn that the work is over.
      if (call?.name === 'stop') this.#work.spoil();
      call?.reject(decodeError(message.error));
    } else this.#take(message.id)?.resolve(message.result);
  }

  #ended(cause: unknown): void {
    const isNews = this.#failure === undefined;
    // A thread that has answered stop() may end before stop() goes on.
    const isStopped = this.#stopping !== undefined && cause === undefined && this.#calls.size === 0;
    this.#failure ??= isStopped ? this.#closed() : this.#endOf(cause);
    for (const id of this.#calls.keys()) this.#take(id)?.reject(this.#failure);
    if (isNews && this.#stopping === undefined) this.#options.onEnd(this.#failure);
  }

  #closed(): WeftlineError {
    return new WeftlineError('WL_CLOSED', this.#options.closedMessage);
  }

  #endOf(cause: unknown): WeftlineError {
    if (cause instanceof WeftlineError) return cause;
    // One that the thread threw is the error itself; Node's copy of it has its fields, but not its class.
    if (isCopyOfOurs(cause)) return decodeError(cause);
    const why = cause instanceof Error ? `: ${cause.message}` : '';
    return new WeftlineError('WL_INTERNAL', `The ${this.#options.what} ended${why}`, { cause });
  }
}

function isCopyOfOurs(error: unknown): error is Omit<EncodedError, 'cause'> {
  return error instanceof Error && error.name === 'WeftlineError' && 'code' in error && 'details' in error;
}

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

type ToThread =
  | { readonly id: number; readonly name: string; readonly argument: unknown }
  /** Nobody waits for the call's result any more. */
  | { readonly cancelled: number };

type FromThread<Event> =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: EncodedError }
  | { readonly event: Event }
  /** The last message of a thread that failed. */
  | { readonly crash: EncodedError };

/** The thread's end of a WorkerLink: carries out calls, answers them, reports events. */
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
