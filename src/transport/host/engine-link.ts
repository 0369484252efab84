// How the user's thread reaches its engine: on a thread of its own, or on the same one inside calls that wait.
import { WeftlineError } from '../../core/errors.ts';
import { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import { SpinTime } from '../../threads/spin-time.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import { findCall } from '../../threads/worker-port.ts';
import type { HostCalls, HostEvent } from './host-calls.ts';
import type { EngineCalls, EngineThread, HostedEngine } from './serve-engine.ts';
import { SharedRequests } from './shared-requests.ts';

export interface EngineLink {
  /** The user's side of it. */
  readonly requests: SharedRequests;
  /** Why the engine is gone; undefined while it runs. */
  readonly failure: WeftlineError | undefined;
  onEvent: (event: HostEvent) => void;
  /** Called once if the engine fails. */
  onFailure: (error: WeftlineError) => void;
  call<Name extends keyof HostCalls>(
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>>;
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

/** The most that blocking waits poll before they sleep; less where it turns out to be in vain. */
const MAX_SPIN_MICROSECONDS = 300;
/** An engine answers calls between two rounds of its loop. One that takes so long hangs. */
const MAX_ANSWER_MS = 30_000;

/** An engine on a thread of its own. */
export class ThreadLink implements EngineLink {
  readonly requests = new SharedRequests();
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  readonly #link: WorkerLink<EngineCalls, HostEvent>;
  readonly #spin = new SpinTime(MAX_SPIN_MICROSECONDS);
  #doorbell: Doorbell | undefined;

  /** Fails with what the engine fails with when it starts. */
  static async start(entry: URL, settings: Settings, wake: WakeWord | undefined): Promise<ThreadLink> {
    const link = new ThreadLink(entry, settings, wake);
    link.#doorbell = Doorbell.of(await link.#link.call('start'));
    return link;
  }

  private constructor(entry: URL, settings: Settings, wake: WakeWord | undefined) {
    const data: EngineThread<Settings> = { settings, shared: this.requests.buffer, wake: wake?.buffer };
    this.#link = new WorkerLink({
      entry,
      name: 'transport',
      what: "thread of the transport's engine",
      closedMessage: 'The transport was closed',
      data,
      timeoutMs: MAX_ANSWER_MS,
      onCall: () => {
        this.requests.announceCall();
        this.nudge();
      },
      onEvent: (event) => this.onEvent(event),
      onEnd: (error) => {
        this.#doorbell = undefined;
        // Waiters look at the failure.
        this.requests.wakeWaiters();
        wake?.ring();
        this.onFailure(error);
      },
    });
  }

  get failure(): WeftlineError | undefined {
    return this.#link.failure;
  }

  call<Name extends keyof HostCalls>(
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    return this.#link.call(name, ...argument);
  }

  nudge(): void {
    if (this.requests.engineSleeps) this.#doorbell?.ring();
  }

  readEvents(): void {
    this.#link.readMessages();
  }

  progress(): void {
    this.nudge();
  }

  wait(seen: number, milliseconds: number): Promise<void> {
    return this.requests.wait(seen, milliseconds);
  }

  waitBlocking(seen: number, milliseconds: number, isLone: boolean): void {
    // Where many requests are under way, the engine needs the processor more than the waiter.
    this.requests.waitBlocking(seen, milliseconds, isLone ? this.#spin : undefined);
    if (this.requests.hasCrashed) this.readEvents();
  }

  async close(): Promise<void> {
    const stopped = this.#link.stop();
    // The engine closes its doorbell, whose number may then be another file's.
    this.#doorbell = undefined;
    await stopped;
  }
}

/** An async wait returns to the event loop at least this often. */
const INLINE_SLICE_MS = 1;
const NEVER: AbortSignal = new AbortController().signal;

/** An engine on the caller's thread, inside calls that wait. */
export class InlineLink implements EngineLink {
  readonly requests: SharedRequests = new SharedRequests();
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #host: HostedEngine;

  constructor(create: (requests: SharedRequests, onEvent: (event: HostEvent) => void) => HostedEngine) {
    this.#host = create(new SharedRequests(this.requests.buffer), (event) => this.onEvent(event));
  }

  async call<Name extends keyof HostCalls>(
    name: Name,
    ...[argument]: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    if (this.failure !== undefined) throw this.failure;
    this.#host.beginCall();
    return findCall(this.#host.calls, name)(argument, NEVER) as ResultOf<HostCalls, Name>;
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
    await this.call('stop');
    this.failure = new WeftlineError('WL_CLOSED', 'The transport was closed');
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
