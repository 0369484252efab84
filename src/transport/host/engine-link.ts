// How the user's thread reaches its engine: on a thread of its own, or on the same one inside calls that wait.
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { decodeError, WeftlineError } from '../../core/errors.ts';
import type { WakeWord } from '../../core/wake-word.ts';
import { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import { EngineHost, type HostCall, type HostEvent } from './engine-host.ts';
import type { EngineWorkerData, WorkerMessage } from './engine-worker.ts';
import { SharedRequests } from './shared-requests.ts';

export interface EngineLink {
  /** The user's side of it. */
  readonly requests: SharedRequests;
  /** Why the engine is gone; undefined while it runs. */
  readonly failure: WeftlineError | undefined;
  onEvent: (event: HostEvent) => void;
  /** Called once if the engine fails. */
  onFailure: (error: WeftlineError) => void;
  call(call: HostCall): Promise<unknown>;
  /** Hot path. To be called after `requests.put`. */
  nudge(): void;
  /** Hands events that have arrived to `onEvent` now. */
  readEvents(): void;
  /** Lets the engine work, if it has no thread of its own. */
  progress(): void;
  /** Until a further request has ended than `seen` counts, or the time is over. */
  wait(seen: number, milliseconds: number): Promise<void>;
  waitBlocking(seen: number, milliseconds: number): void;
  close(): Promise<void>;
}

export async function openEngineLink(settings: Settings, wake?: WakeWord): Promise<EngineLink> {
  return settings.transportThread ? WorkerLink.start(settings, wake) : new InlineLink(settings, wake);
}

interface PendingCall {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: WeftlineError) => void;
}

class WorkerLink implements EngineLink {
  readonly requests = new SharedRequests();
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #worker: Worker;
  readonly #wake: WakeWord | undefined;
  readonly #port: MessagePort;
  readonly #calls = new Map<number, PendingCall>();
  readonly #started: Promise<void>;
  #start: (() => void) | undefined;
  #doorbell: Doorbell | undefined;
  #nextCall = 1;

  static async start(settings: Settings, wake: WakeWord | undefined): Promise<EngineLink> {
    const link: WorkerLink = new WorkerLink(settings, wake);
    await link.#started;
    if (link.failure !== undefined) throw link.failure;
    link.#worker.unref();
    link.#port.unref();
    return link;
  }

  private constructor(settings: Settings, wake: WakeWord | undefined) {
    const { port1, port2 } = new MessageChannel();
    const shared = this.requests.buffer;
    const workerData: EngineWorkerData = { settings, shared, port: port2, wake: wake?.buffer };
    this.#wake = wake;
    this.#port = port1;
    this.#started = new Promise((resolve) => (this.#start = resolve));
    port1.on('message', (message: WorkerMessage) => this.#handle(message));
    this.#worker = new Worker(new URL('./engine-worker.js', import.meta.url), {
      workerData,
      transferList: [port2],
      name: 'weftline-engine',
    });
    this.#worker.on('error', (cause) => this.#ended(cause));
    this.#worker.on('exit', () => this.#ended(undefined));
  }

  call(call: HostCall): Promise<unknown> {
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
      this.#handle(next.message as WorkerMessage);
    }
  }

  progress(): void {
    this.nudge();
  }

  wait(seen: number, milliseconds: number): Promise<void> {
    return this.requests.wait(seen, milliseconds);
  }

  waitBlocking(seen: number, milliseconds: number): void {
    this.requests.waitBlocking(seen, milliseconds);
    if (this.requests.hasCrashed) this.readEvents();
  }

  async close(): Promise<void> {
    if (this.failure !== undefined) return;
    const exited = new Promise<void>((resolve) => this.#worker.once('exit', () => resolve()));
    this.#worker.ref();
    await this.call({ name: 'stop' });
    // The engine closes its doorbell, whose number may then be another file's.
    this.#doorbell = undefined;
    this.failure = closed();
    await exited;
    this.readEvents();
    this.#port.close();
  }

  #handle(message: WorkerMessage): void {
    if ('doorbell' in message) {
      this.#doorbell = Doorbell.of(message.doorbell);
      this.#start?.();
    } else if ('event' in message) {
      this.onEvent(message);
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
    this.failure ??= engineFailure(cause);
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

class InlineLink implements EngineLink {
  readonly requests: SharedRequests = new SharedRequests();
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #host: EngineHost;

  constructor(settings: Settings, wake: WakeWord | undefined) {
    const requests = new SharedRequests(this.requests.buffer);
    this.#host = new EngineHost({ settings, requests, wake, onEvent: (event) => this.onEvent(event) });
  }

  async call(call: HostCall): Promise<unknown> {
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
    this.failure = closed();
    this.#host[Symbol.dispose]();
  }

  #run(seen: number, end: number): void {
    const { loop } = this.#host;
    while (this.failure === undefined) {
      const isBusy = this.#step();
      if (this.requests.ended !== seen) return;
      if (isBusy) continue;
      const left = end - performance.now();
      if (left <= 0) return;
      if (loop.isIdle) loop.sleep(left * 1000);
    }
  }

  /** False if there was nothing to do. An engine that fails is not run again. */
  #step(): boolean {
    try {
      const hasCommands = this.#host.takeCommands();
      const hasPackets = this.#host.loop.step();
      this.#host.watchPeers();
      return hasCommands || hasPackets;
    } catch (cause) {
      this.failure = engineFailure(cause);
      this.#host[Symbol.dispose]();
      this.onFailure(this.failure);
      throw this.failure;
    }
  }
}

function engineFailure(cause: unknown): WeftlineError {
  if (cause instanceof WeftlineError) return cause;
  const reason = cause instanceof Error ? `: ${cause.message}` : '';
  return new WeftlineError('WL_INTERNAL', `The engine of the transport failed${reason}`, { cause });
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The transport was closed');
}
