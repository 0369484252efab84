// How the user's thread reaches its engine: on a thread of its own, or on the same one inside calls that wait.
import { MessageChannel, type MessagePort, receiveMessageOnPort, type Worker } from 'node:worker_threads';
import { decodeError, WeftlineError } from '../../core/errors.ts';
import { SpinTime } from '../../threads/spin-time.ts';
import { startWorker } from '../../threads/start-worker.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { Doorbell } from '../../native/readiness.ts';
import type { EngineThreadData, HostedEngine, StopCall, ThreadMessage } from './serve-engine.ts';
import { SharedRequests } from './shared-requests.ts';

export interface EngineLink<Call, Event> {
  /** The user's side of it. */
  readonly requests: SharedRequests;
  /** Why the engine is gone; undefined while it runs. */
  readonly failure: WeftlineError | undefined;
  onEvent: (event: Event) => void;
  /** Called once if the engine fails. */
  onFailure: (error: WeftlineError) => void;
  call(call: Call | StopCall): Promise<unknown>;
  /** Hot path. To be called after `requests.put`. */
  nudge(): void;
  /** Hands events that have arrived to `onEvent` now. */
  readEvents(): void;
  /** Lets the engine work, if it has no thread of its own. */
  progress(): void;
  /** Until a further request has ended than `seen` counts, or the time is over. */
  wait(seen: number, milliseconds: number): Promise<void>;
  /** `isLone`: nothing else is under way, so that the wait is for one answer. */
  waitBlocking(seen: number, milliseconds: number, isLone: boolean): void;
  close(): Promise<void>;
}

export interface EngineLinkOptions<Call, Event> {
  /** For errors: "transport". */
  readonly name: string;
  /** The module that serves the engine on a thread of its own, and what it needs to know. */
  readonly thread: { readonly entry: URL; readonly data: unknown };
  /** Makes the engine on this thread. */
  readonly inline: (requests: SharedRequests, onEvent: (event: Event) => void) => HostedEngine<Call>;
  readonly wake: WakeWord | undefined;
}

export function openThreadLink<Call, Event extends object>(
  options: EngineLinkOptions<Call, Event>,
): Promise<EngineLink<Call, Event>> {
  return WorkerLink.start(options);
}

export function openInlineLink<Call, Event extends object>(
  options: EngineLinkOptions<Call, Event>,
): EngineLink<Call, Event> {
  return new InlineLink(options);
}

interface PendingCall {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: WeftlineError) => void;
}

/** The most that blocking waits poll before they sleep; less where it turns out to be in vain. */
const MOST_SPIN_MICROSECONDS = 300;

class WorkerLink<Call, Event extends object> implements EngineLink<Call, Event> {
  readonly requests = new SharedRequests();
  onEvent: (event: Event) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #name: string;
  readonly #worker: Worker;
  readonly #wake: WakeWord | undefined;
  readonly #port: MessagePort;
  readonly #calls = new Map<number, PendingCall>();
  readonly #spin = new SpinTime(MOST_SPIN_MICROSECONDS);
  readonly #started: Promise<void>;
  #start: (() => void) | undefined;
  #doorbell: Doorbell | undefined;
  #nextCall = 1;

  static async start<Call, Event extends object>(
    options: EngineLinkOptions<Call, Event>,
  ): Promise<EngineLink<Call, Event>> {
    const link: WorkerLink<Call, Event> = new WorkerLink(options);
    await link.#started;
    if (link.failure !== undefined) throw link.failure;
    link.#worker.unref();
    link.#port.unref();
    return link;
  }

  private constructor({ name, thread, wake }: EngineLinkOptions<Call, Event>) {
    const { port1, port2 } = new MessageChannel();
    const shared = this.requests.buffer;
    const workerData: EngineThreadData = { data: thread.data, shared, port: port2, wake: wake?.buffer };
    this.#name = name;
    this.#wake = wake;
    this.#port = port1;
    this.#started = new Promise((resolve) => (this.#start = resolve));
    port1.on('message', (message: ThreadMessage<Event>) => this.#handle(message));
    this.#worker = startWorker(thread.entry, { workerData, transferList: [port2], name });
    this.#worker.on('error', (cause) => this.#ended(cause));
    this.#worker.on('exit', () => this.#ended(undefined));
  }

  call(call: Call | StopCall): Promise<unknown> {
    if (this.failure !== undefined) return Promise.reject(this.failure);
    const id = this.#nextCall++;
    return new Promise((resolve, reject) => {
      if (this.#calls.size === 0) this.#port.ref();
      this.#calls.set(id, { resolve, reject });
      this.#port.postMessage({ id, call });
      this.requests.announceCall();
      this.nudge();
    });
  }

  nudge(): void {
    if (this.requests.engineSleeps) this.#doorbell?.ring();
  }

  readEvents(): void {
    for (;;) {
      const next = receiveMessageOnPort(this.#port);
      if (next === undefined) return;
      this.#handle(next.message as ThreadMessage<Event>);
    }
  }

  progress(): void {
    this.nudge();
  }

  wait(seen: number, milliseconds: number): Promise<void> {
    return this.requests.wait(seen, milliseconds);
  }

  waitBlocking(seen: number, milliseconds: number, isLone: boolean): void {
    // Where many requests are under way, the engine needs the processor more than whoever waits.
    this.requests.waitBlocking(seen, milliseconds, isLone ? this.#spin : undefined);
    if (this.requests.hasCrashed) this.readEvents();
  }

  async close(): Promise<void> {
    if (this.failure !== undefined) return;
    const exited = new Promise<void>((resolve) => this.#worker.once('exit', () => resolve()));
    this.#worker.ref();
    await this.call({ name: 'stop' });
    // The engine closes its doorbell, whose number may then be another file's.
    this.#doorbell = undefined;
    this.failure = closed(this.#name);
    await exited;
    this.readEvents();
    this.#port.close();
  }

  #handle(message: ThreadMessage<Event>): void {
    if ('doorbell' in message) {
      this.#doorbell = Doorbell.of(message.doorbell);
      this.#start?.();
    } else if ('event' in message) {
      this.onEvent(message.event);
    } else if ('crash' in message) {
      this.#ended(decodeError(message.crash));
    } else {
      const pending = this.#calls.get(message.id);
      this.#calls.delete(message.id);
      if (this.#calls.size === 0) this.#port.unref();
      if ('error' in message) pending?.reject(decodeError(message.error));
      else pending?.resolve(message.result);
    }
  }

  #ended(cause: unknown): void {
    this.#doorbell = undefined;
    // What the engine said last may still wait to be read.
    this.readEvents();
    const isNews = this.failure === undefined;
    this.failure ??= engineFailure(this.#name, cause);
    for (const pending of this.#calls.values()) pending.reject(this.failure);
    this.#calls.clear();
    this.#port.unref();
    this.#start?.();
    // Whoever waits looks at the failure.
    this.requests.wakeWaiters();
    this.#wake?.ring();
    if (isNews) this.onFailure(this.failure);
  }
}

/** An async wait returns to the event loop at least this often. */
const INLINE_SLICE_MS = 1;

class InlineLink<Call, Event> implements EngineLink<Call, Event> {
  readonly requests: SharedRequests = new SharedRequests();
  onEvent: (event: Event) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #name: string;
  readonly #host: HostedEngine<Call>;

  constructor({ name, inline }: EngineLinkOptions<Call, Event>) {
    this.#name = name;
    this.#host = inline(new SharedRequests(this.requests.buffer), (event) => this.onEvent(event));
  }

  async call(call: Call | StopCall): Promise<unknown> {
    if (this.failure !== undefined) throw this.failure;
    // Commands put before the call come before it, as they do where the engine has a thread.
    this.#host.takeCommands();
    return this.#host.call(call);
  }

  nudge(): void {}

  readEvents(): void {}

  progress(): void {
    if (this.failure === undefined) this.#step();
  }

  async wait(seen: number, milliseconds: number): Promise<void> {
    const end = performance.now() + milliseconds;
    do {
      this.#run(seen, Math.min(end, performance.now() + INLINE_SLICE_MS));
      // Timers and sockets of this process go on.
      await new Promise((resolve) => setImmediate(resolve));
    } while (this.requests.ended === seen && performance.now() < end);
  }

  waitBlocking(seen: number, milliseconds: number): void {
    this.#run(seen, performance.now() + milliseconds);
  }

  async close(): Promise<void> {
    if (this.failure !== undefined) return;
    await this.call({ name: 'stop' });
    this.failure = closed(this.#name);
    this.#host[Symbol.dispose]();
  }

  #run(seen: number, end: number): void {
    const host = this.#host;
    while (this.failure === undefined) {
      const isBusy = this.#step();
      if (this.requests.ended !== seen) return;
      if (isBusy) continue;
      const left = end - performance.now();
      if (left <= 0) return;
      if (host.isIdle) host.sleep(left * 1000);
    }
  }

  /** False if there was nothing to do. An engine that fails is not run again. */
  #step(): boolean {
    try {
      const hasCommands = this.#host.takeCommands();
      const hasWork = this.#host.step();
      return hasCommands || hasWork;
    } catch (cause) {
      this.failure = engineFailure(this.#name, cause);
      this.#host[Symbol.dispose]();
      this.onFailure(this.failure);
      throw this.failure;
    }
  }
}

function engineFailure(name: string, cause: unknown): WeftlineError {
  if (cause instanceof WeftlineError) return cause;
  const reason = cause instanceof Error ? `: ${cause.message}` : '';
  return new WeftlineError('WL_INTERNAL', `The engine of the ${name} failed${reason}`, { cause });
}

function closed(name: string): WeftlineError {
  return new WeftlineError('WL_CLOSED', `The ${name} was closed`);
}
