// The engines of a transport as one: how the user's thread reaches each, on a thread of its own or inside calls that wait,
// their rings, what they share, and how they fail and end together.
import { asWeftlineError, encodeError, WeftlineError } from '../../core/errors.ts';
import { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import { SpinTime } from '../../threads/spin-time.ts';
import { type ArgumentOf, findCall, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import type { EngineEnds } from '../io/packet-io-kind.ts';
import { CommandRing, EngineBells, type EngineCommand } from './command-ring.ts';
import { EngineHost, type HostCalls, type HostEvent } from './engine-host.ts';
import type { EngineCalls, EngineThread } from './engine-worker.ts';
import type { Meeting } from './greeting.ts';
import type { SharedRequests } from './shared-requests.ts';

/** One engine of a transport, as the user's thread sees it. */
export interface EngineLink extends Omit<ThreadLink, 'hasThread' | 'duplicateBell' | 'meet'> {
  /** False if the engine works within calls of the user's thread alone. */
  readonly hasThread: boolean;
}

/** What the engines of a transport share. */
export interface SharedParts {
  readonly requests: SharedRequests;
  /** Rings in the order of engines. */
  readonly rings: readonly CommandRing[];
}

/** The most that blocking waits poll before they sleep; less where it turns out to be in vain. */
const MAX_SPIN_MICROSECONDS = 300;
/** An engine answers calls between two rounds of its loop. One that takes so long hangs, unless the settings have more patience. */
const MIN_PATIENCE_MS = 30_000;

/** An engine on a thread of its own. */
export class ThreadLink {
  readonly hasThread = true;
  /** The user's side of it. */
  readonly ring: CommandRing;
  onEvent: (event: HostEvent) => void = () => {};
  /** Called once if the engine fails. */
  onFailure: (error: WeftlineError) => void = () => {};
  readonly #requests: SharedRequests;
  readonly #link: WorkerLink<EngineCalls, HostEvent>;
  readonly #spin = new SpinTime(MAX_SPIN_MICROSECONDS);
  #doorbell: Doorbell | undefined;

  /** Starts engine number `engine`. Fails with what it fails with when it starts. */
  static async start(entry: URL, settings: Settings, engine: number, shared: SharedParts): Promise<ThreadLink> {
    const link = new ThreadLink(entry, settings, engine, shared);
    link.#doorbell = Doorbell.of(await link.#link.call('start'));
    return link;
  }

  private constructor(entry: URL, settings: Settings, engine: number, { requests, rings }: SharedParts) {
    this.ring = rings[engine] as CommandRing;
    this.#requests = requests;
    const data: EngineThread = {
      settings,
      shared: requests.buffer,
      rings: rings.map(({ buffer }) => buffer),
      engine,
      news: requests.news.buffer,
    };
    this.#link = new WorkerLink({
      entry,
      name: engine === 0 ? 'transport' : `transport-${engine}`,
      what: "thread of the transport's engine",
      closedMessage: 'The transport was closed',
      data,
      timeoutMs: Math.max(MIN_PATIENCE_MS, settings.timeoutMs),
      onCall: () => {
        this.ring.announceCall();
        this.nudge();
      },
      onEvent: (event) => this.onEvent(event),
      onEnd: (error) => {
        this.#doorbell = undefined;
        this.onFailure(error);
        // Waiters look at the failure.
        requests.news.ring();
      },
    });
  }

  /** The engine's doorbell under a number of its own, for other engines: it stays open when this engine ends. */
  duplicateBell(): Doorbell | undefined {
    return this.#doorbell?.duplicate();
  }

  /** Gives the engine the doorbells of all, by engine. */
  meet(bells: readonly Doorbell[]): Promise<void> {
    return this.#link.call(
      'meet',
      bells.map(({ fd }) => fd),
    );
  }

  /** Why the engine is gone; undefined while it runs. */
  get failure(): WeftlineError | undefined {
    return this.#link.failure;
  }

  call<Name extends keyof HostCalls>(
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    return this.#link.call(name, ...argument);
  }

  /** Hot path. To be called after `ring.put`. */
  nudge(): void {
    if (this.ring.engineSleeps) this.#doorbell?.ring();
  }

  /** Hands events that have arrived to `onEvent` now. */
  readEvents(): void {
    this.#link.readMessages();
  }

  /** Lets the engine work, if it has no thread; if there is nothing to do it blocks for so many ms at most, until there is. */
  progress(_milliseconds: number): void {
    this.nudge();
  }

  /** Returns when a further request of any engine has ended than `seen` counts, or the time is over. */
  wait(seen: number, milliseconds: number): Promise<void> {
    return this.#requests.news.sleep(seen, milliseconds);
  }

  /** `areFew`: hardly anything else is under way, so that the wait is for one answer. */
  waitBlocking(seen: number, milliseconds: number, areFew: boolean): void {
    // When many requests are under way, the engines need the processor more than the waiter.
    this.#requests.waitBlocking(seen, milliseconds, areFew ? this.#spin : undefined);
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
  readonly hasThread = false;
  readonly ring: CommandRing;
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  failure: WeftlineError | undefined;
  readonly #requests: SharedRequests;
  readonly #host: EngineHost;

  /** The only engine of its transport. */
  constructor(settings: Settings, { requests, rings }: SharedParts) {
    this.ring = rings[0] as CommandRing;
    this.#requests = requests;
    this.#host = new EngineHost({
      settings,
      engines: 1,
      engine: 0,
      requests,
      ring: new CommandRing(this.ring.buffer),
      bells: new EngineBells(rings),
      onEvent: (event) => this.onEvent(event),
    });
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

  progress(milliseconds: number): void {
    if (this.failure !== undefined || this.#step() || milliseconds === 0) return;
    if (this.#host.isIdle) this.#host.sleep(milliseconds * 1000);
  }

  async wait(seen: number, milliseconds: number): Promise<void> {
    const end = performance.now() + milliseconds;
    do {
      this.#run(seen, Math.min(end, performance.now() + INLINE_SLICE_MS));
      // Timers and sockets of this process go on.
      await new Promise((resolve) => setImmediate(resolve));
    } while (this.#requests.news.seen === seen && performance.now() < end);
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
      if (this.#requests.news.seen !== seen) return;
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

/** One lane's end on this side: an engine, and that engine's number of the connection. */
export interface LaneEnd {
  readonly engine: number;
  readonly number: number;
}

/** An engine's name for a connection to be. */
export interface Reserved {
  readonly engine: number;
  readonly id: number;
}

export class EngineGroup {
  readonly requests: SharedRequests;
  /** Links in the order of engines. */
  readonly links: readonly EngineLink[];
  /** Descriptors through which the engines wake each other. */
  readonly #bells: readonly Doorbell[];
  #failure: WeftlineError | undefined;
  /** The engine that the next connection begins with, so that those with fewer lanes than there are engines use all. */
  #nextEngine = 0;

  constructor(requests: SharedRequests, links: readonly EngineLink[], bells: readonly Doorbell[] = []) {
    this.requests = requests;
    this.links = links;
    this.#bells = bells;
  }

  /** Hears of all engines; the failure is called once. */
  listen(onEvent: (event: HostEvent, engine: number) => void, onFailure: (error: WeftlineError) => void): void {
    for (const [engine, link] of this.links.entries()) {
      link.onEvent = (event) => onEvent(event, engine);
      link.onFailure = (error) => {
        if (this.#failure !== undefined) return;
        this.#failure = error;
        onFailure(error);
      };
    }
  }

  /** Why an engine is gone, and with it the transport; undefined while all run. */
  get failure(): WeftlineError | undefined {
    return this.#failure ?? (this.links[0] as EngineLink).failure;
  }

  /** Hot path. False if the only engine works within calls of the user's thread. */
  get hasThreads(): boolean {
    return (this.links[0] as EngineLink).hasThread;
  }

  /** True if an engine has failed of which nothing has been heard yet. */
  get hasCrashed(): boolean {
    return this.links.some(({ ring }) => ring.hasCrashed);
  }

  /** Hot path. True if each of the engines, given as bits, takes another command. */
  haveRoom(engines: number): boolean {
    for (let engine = 0; engines >> engine !== 0; engine++) {
      if (((engines >> engine) & 1) === 1 && !(this.links[engine] as EngineLink).ring.hasRoom) return false;
    }
    return true;
  }

  /** Hot path. Hands a command to an engine, which must have room for it. */
  put(engine: number, command: EngineCommand): void {
    const link = this.links[engine] as EngineLink;
    link.ring.put(command);
    link.nudge();
  }

  call<Name extends keyof HostCalls>(
    engine: number,
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    return (this.links[engine] as EngineLink).call(name, ...argument);
  }

  /**
   * Calls every engine, also after one has failed, and waits for all. Returns what they answer, by engine. Fails with the
   * failure of the only engine that failed, or with one that names all of them.
   */
  async callAll<Name extends keyof HostCalls>(
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>[]> {
    const ends = await Promise.allSettled(this.links.map((link) => link.call(name, ...argument)));
    const failures = ends.flatMap((end, engine) =>
      end.status === 'rejected' ? [{ engine, error: asWeftlineError(end.reason) }] : [],
    );
    const [first] = failures;
    if (first === undefined) return ends.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []));
    if (failures.length === 1) throw first.error;
    const texts = failures.map(({ engine, error }) => `engine ${engine}: ${error.message}`);
    throw new WeftlineError(
      first.error.code,
      `${failures.length} of ${ends.length} engines failed: ${texts.join('; ')}`,
      { cause: first.error, details: { engines: failures.map(({ engine }) => engine) } },
    );
  }

  /** Names for a connection on so many engines. */
  async reserve(lanes: number): Promise<readonly Reserved[]> {
    const first = this.#nextEngine;
    const engines = this.links.length;
    this.#nextEngine = (first + lanes) % engines;
    return allOrThese(
      Array.from({ length: lanes }, async (_, lane): Promise<Reserved> => {
        const engine = (first + lane) % engines;
        return { engine, id: await this.call(engine, 'reserve') };
      }),
      (some) => this.unreserve(some),
    );
  }

  /** Names that have led to no connection. */
  async unreserve(reserved: readonly Reserved[]): Promise<void> {
    if (this.failure !== undefined) return;
    await Promise.all(reserved.map(({ engine, id }) => this.call(engine, 'unreserve', id)));
  }

  /** Gives each lane of a meeting to its engine, which closes its sockets from then on, also if it fails. */
  async connect(
    { lanes, paths, peerName, segmentBytes }: Meeting,
    reserved: readonly Reserved[],
  ): Promise<readonly LaneEnd[]> {
    await this.unreserve(reserved.slice(lanes.length));
    return allOrThese(
      lanes.map(async (lane, at): Promise<LaneEnd> => {
        const { engine } = reserved[at] as Reserved;
        const endpoint = paths.endpoint(at);
        const options = { ...lane, peerName, segmentBytes, endpoint, keepsPlaces: lanes.length > 1 };
        return { engine, number: await this.call(engine, 'connect', options) };
      }),
      async (some, reason) => {
        const error = encodeError(reason);
        await Promise.all(some.map(({ engine, number }) => this.call(engine, 'end', { connection: number, error })));
      },
    );
  }

  readEvents(): void {
    for (const link of this.links) link.readEvents();
  }

  progress(milliseconds: number): void {
    for (const link of this.links) link.progress(milliseconds);
  }

  wait(seen: number, milliseconds: number): Promise<void> {
    return (this.links[0] as EngineLink).wait(seen, milliseconds);
  }

  waitBlocking(seen: number, milliseconds: number, areFew: boolean): void {
    (this.links[0] as EngineLink).waitBlocking(seen, milliseconds, areFew);
    if (this.hasCrashed) this.readEvents();
  }

  async close(): Promise<void> {
    const ends = await Promise.allSettled(this.links.map((link) => link.close()));
    // No engine is left that could ring them.
    for (const bell of this.#bells) bell[Symbol.dispose]();
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }
}

/** The maker of ends of paths that an engine of the group has on its thread. */
export function engineEnds(group: EngineGroup, engine: number): EngineEnds {
  return {
    open: (plan) => group.call(engine, 'openEnds', plan),
    connect: (join) => group.call(engine, 'connectEnds', join),
    probe: (probe) => group.call(engine, 'probeEnds', probe),
    probed: (probe) => group.call(engine, 'probedEnds', probe),
    close: (ends) => group.call(engine, 'closeEnds', ends),
  };
}

/** What all promises bring; if one fails, `undo` gets what the others brought, and its reason is thrown. */
async function allOrThese<T>(
  promises: readonly Promise<T>[],
  undo: (some: readonly T[], reason: unknown) => Promise<void>,
): Promise<readonly T[]> {
  const settled = await Promise.allSettled(promises);
  const values = settled.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const failed = settled.find((one) => one.status === 'rejected');
  if (failed === undefined) return values;
  await undo(values, failed.reason);
  throw failed.reason;
}
