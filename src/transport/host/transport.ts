// The transport as a program uses it: registered memory, connections made and accepted, the ends of requests.
import { hostname } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import { checkOptions, type OptionNames, requireFlag } from '../../core/check-options.ts';
import {
  callWaitNames,
  checkSignal,
  checkTimeout,
  deadlineOf,
  waitOptionNames,
  type WaitOptions,
} from '../../core/deadline.ts';
import { type EncodedError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { packageFile } from '../../core/package-file.ts';
import { isPrintable } from '../../core/quote.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { type Credentials, credentialsOf } from '../../meeting/credentials.ts';
import { type Address, call, type DialWait } from '../../meeting/dial.ts';
import { requireAddress } from '../../meeting/route.ts';
import type { Doorbell } from '../../native/readiness.ts';
import { readSettings, readToken, type Settings } from '../../settings/settings.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { startTracing } from '../../tracing/start-tracing.ts';
import type { RemoteAccess } from '../engine/region.ts';
import { transportSettings } from '../engine/transport-settings.ts';
import { loadTransportIo, transportIo } from '../io/packet-ios.ts';
import { ChannelPool } from './channel.ts';
import { CommandRing } from './command-ring.ts';
import { Connection, type WatchedChannel } from './connection.ts';
import { engineEnds, EngineGroup, InlineLink, type Reserved, type SharedParts, ThreadLink } from './engine-group.ts';
import type { HostEvent } from './engine-host.ts';
import {
  acceptPeer,
  connectPeer,
  type GreetingOptions,
  helloOf,
  type IncomingConnection,
  introduce,
  type Meeting,
} from './greeting.ts';
import { fixedBytes, type MemoryRegion, memoryRegion, type RegisteredMemory } from './memory-region.ts';
import { engineCount, suitCores } from './rank-cores.ts';
import { type RequestHandle, RequestSlots, type RequestState } from './request-slots.ts';
import { SharedRequests } from './shared-requests.ts';
import { TransportListener } from './transport-listener.ts';

/** How a transport is named, which token it holds and which settings it has. */
export interface TransportOptions {
  /** How errors of peers call this side, such as "rank 3"; host and process by default. */
  readonly name?: string;
  /**
   * Both sides of a connection must hold the same; WEFTLINE_TOKEN by default. Without any, only processes of this user on
   * this host may connect.
   */
  readonly token?: string;
  /** Wins over the environment. Those whose names begin with `transport` count, and `timeoutMs`. */
  readonly settings?: Partial<Settings>;
  /**
   * Rung from the engine's thread when a request or connection has ended, and when a peer's signal was added.
   * @internal
   */
  readonly wake?: WakeWord;
}

/** What an application adds to the hello of a connection; see `Connection.hello`. */
export interface TransportConnectOptions extends DialWait {
  /** What the application says of itself, as JSON expresses it, of some kilobytes. */
  readonly hello?: unknown;
  /** @internal What is expected there, for errors: "agent b". A transport by default. */
  readonly who?: string;
}

/** How a listener answers callers. */
export interface TransportListenOptions {
  /** Hears what a caller says that has proven itself, and answers it. What it throws refuses the caller with that reason. */
  readonly receive?: (hello: unknown) => IncomingConnection<Connection> | Promise<IncomingConnection<Connection>>;
}

const addressNames: OptionNames<Address> = { host: true, port: true };
const transportOptionNames: OptionNames<TransportOptions> = { name: true, token: true, settings: true, wake: true };
const connectOptionNames: OptionNames<TransportConnectOptions> = {
  ...callWaitNames,
  retry: true,
  hello: true,
  who: true,
};
const listenOptionNames: OptionNames<TransportListenOptions> = { receive: true };

/**
 * Engines that carry messages, writes and reads over many paths, with the memory that is registered with it. All calls
 * belong to the thread that created it; after `close` everything fails with WL_CLOSED.
 */
export class Transport implements AsyncDisposable {
  readonly settings: Settings;
  readonly name: string;
  readonly #credentials: Credentials;
  readonly #group: EngineGroup;
  readonly #slots: RequestSlots;
  readonly #channels: ChannelPool;
  /** Connections by engine and that engine's number of them. */
  readonly #connections = new Map<string, Connection>();
  readonly #listeners = new Set<TransportListener>();
  /** Addresses, by the setting transportRails. */
  readonly #rails: readonly string[];
  /** So that registered memory is not collected; a tensor as such, because its memory is freed with it. */
  readonly #regions = new Map<number, RegisteredMemory>();
  /** Memory that an engine may not have given back yet. */
  readonly #leaving = new Map<number, RegisteredMemory>();
  /** Ends what is being connected. */
  readonly #ending = new AbortController();
  #closing: Promise<void> | undefined;

  /**
   * Starts the engines. Fails with WL_CONFIG for settings, with WL_UNSUPPORTED where the system calls are missing.
   * @param options Name, token, settings.
   */
  static async create(options: TransportOptions = {}): Promise<Transport> {
    checkOptions(options, transportOptionNames, 'options of Transport.create');
    checkName(options.name);
    const settings = readSettings(options.settings);
    const rails = (await loadTransportIo(settings)).rails(settings);
    return new Transport(await openEngines(settings, options.wake), settings, { ...options, rails });
  }

  /** @internal Over engines that somebody else runs, such as a simulation. */
  static over(group: EngineGroup, settings: Settings, name: string): Transport {
    return new Transport(group, settings, { name, rails: [] });
  }

  private constructor(
    group: EngineGroup,
    settings: Settings,
    { name, token, rails }: TransportOptions & { readonly rails: readonly string[] },
  ) {
    this.settings = settings;
    this.name = name ?? `process ${process.pid} on ${hostname()}`;
    this.#credentials = credentialsOf(readToken(token));
    this.#group = group;
    this.#rails = rails;
    this.#slots = new RequestSlots(group, settings.timeoutMs);
    this.#channels = new ChannelPool(group);
    group.listen(
      (event, engine) => this.#handle(event, engine),
      (error) => {
        for (const connection of new Set(this.#connections.values())) void connection.end(error);
      },
    );
  }

  /**
   * Accepts connections at the address; port 0 takes any. Fails with WL_NATIVE if it cannot listen, WL_CONFIG if other hosts
   * could connect and there is no token, WL_CLOSED.
   */
  async listen(address: Address, options: TransportListenOptions = {}): Promise<TransportListener> {
    this.#checkOpen();
    checkOptions(requireAddress(address), addressNames, 'address of listen');
    checkOptions(options, listenOptionNames, 'options of listen');
    const { receive } = options;
    if (receive !== undefined && typeof receive !== 'function') throw invalidArgument('receive', receive, 'a function');
    const listener = await TransportListener.open({
      target: address,
      credentials: this.#credentials,
      settings: this.settings,
      silenceMs: this.settings.timeoutMs,
      greet: (channel, opened) => this.#greetGuest(channel, opened, receive),
      onClose: (gone) => this.#listeners.delete(gone),
    });
    if (this.#closing !== undefined) listener.close();
    this.#checkOpen();
    this.#listeners.add(listener);
    return listener;
  }

  /**
   * Connects to a transport that listens, trying again until it does. Fails with WL_TIMEOUT, WL_UNAUTHORIZED (another
   * token or user), WL_PROTOCOL (another version), WL_CONFIG (another host, and no token), WL_INVALID_ARGUMENT (no such
   * host).
   * @param address Where the other transport listens.
   * @param options How long to try, and what to say in the hello.
   */
  async connect(address: Address, options: TransportConnectOptions = {}): Promise<Connection> {
    this.#checkOpen();
    checkOptions(requireAddress(address), addressNames, 'address of connect');
    checkOptions(options, connectOptionNames, 'options of connect');
    requireFlag('retry', options.retry);
    const { hello, who = 'transport' } = options;
    const signals = [this.#ending.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const signal = AbortSignal.any(signals);
    const deadline = deadlineOf(options, this.settings.timeoutMs);
    const reserved = await this.#group.reserve(this.engines).catch((error: unknown) => {
      signal.throwIfAborted();
      throw error;
    });
    try {
      const greeting = this.#greeting(reserved);
      const { channel, ...greeted } = await call(address, {
        ...options,
        deadline,
        signal,
        who,
        hello: helloOf(this.#credentials),
        body: introduce(greeting, hello),
        silenceMs: this.settings.timeoutMs,
      });
      const abort = (): void => channel.hangUp();
      signal.addEventListener('abort', abort);
      try {
        return await this.#adopt(channel, await connectPeer(channel, greeted, greeting), reserved);
      } catch (error) {
        channel.hangUp();
        signal.throwIfAborted();
        throw error;
      } finally {
        signal.removeEventListener('abort', abort);
      }
    } catch (error) {
      // Engines that have ended hold no names.
      await this.#group.unreserve(reserved).catch(() => {});
      throw error;
    }
  }

  /** @internal A connection to a peer whom `meet` has met in its own way, by the names that engines have reserved for it. */
  async join(
    channel: WatchedChannel,
    meet: (reserved: readonly Reserved[]) => Meeting | Promise<Meeting>,
  ): Promise<Connection> {
    this.#checkOpen();
    const reserved = await this.#group.reserve(this.engines);
    return this.#adopt(channel, await meet(reserved), reserved);
  }

  /**
   * Memory becomes usable for requests of every connection. `remote` says what peers may do that are told its name.
   * @param memory A Uint8Array or a tensor of the CPU device; it must stay where it is.
   * @param remote What peers may do with it: `read`, `write`; nothing by default.
   */
  async register(memory: RegisteredMemory, remote: Partial<RemoteAccess> = {}): Promise<MemoryRegion> {
    const { bytes, address } = fixedBytes(memory, remote);
    const options = { address, bytes: bytes.length, remote };
    const name = await this.#group.call(0, 'register', options);
    // The others take the name that the first engine has given.
    const others = this.#group.links.slice(1).map((link) => link.call('register', { ...options, name }));
    const ends = await Promise.allSettled(others);
    this.#regions.set(name.id, memory);
    const region = memoryRegion(bytes, name, () => this.#release(name.id));
    const failed = ends.find((end) => end.status === 'rejected');
    if (failed === undefined) return region;
    await region.close().catch(() => {});
    throw failed.reason;
  }

  async #release(number: number): Promise<void> {
    if (this.#closing !== undefined) return this.#closing;
    const memory = this.#regions.get(number);
    // No message of it takes a turn from now on, but it must not be collected while an engine may still write to it.
    this.#regions.delete(number);
    if (memory !== undefined) this.#leaving.set(number, memory);
    // A device that still reads it is soon through, or is made to.
    try {
      while ((await this.#group.callAll('release', number)).includes(false)) await setTimeout(1);
    } catch (error) {
      // An engine that has ended uses no memory.
      if (this.#closing === undefined) throw error;
      return this.#closing;
    }
    this.#leaving.delete(number);
  }

  /** How a request stands. Never waits. */
  state(request: RequestHandle): RequestState {
    return this.#slots.state(request);
  }

  /** Takes the end of a request that has one: returns the bytes received, or throws why it failed. Its name is then free. */
  take(request: RequestHandle): number {
    return this.#slots.take(request);
  }

  /** `take` once the request has ended. Fails with WL_TIMEOUT, naming the peer; the request then stays pending. */
  async wait(request: RequestHandle, options?: WaitOptions): Promise<number> {
    if (options !== undefined) checkOptions(options, waitOptionNames, 'options of wait');
    checkSignal(options?.signal);
    return this.#slots.wait(request, options);
  }

  /** The same, but blocks this thread: answers sooner, while its timers and sockets stand still. */
  waitBlocking(request: RequestHandle, timeoutMs?: number): number {
    return this.#slots.waitBlocking(request, timeoutMs);
  }

  /** Why the engine is gone; undefined while it runs. Requests that were pending then stay so. */
  get failure(): WeftlineError | undefined {
    const group = this.#group;
    if (group.failure === undefined && group.hasCrashed) group.readEvents();
    return group.failure;
  }

  /** @internal How many engines it has. */
  get engines(): number {
    return this.#group.links.length;
  }

  /** @internal Grows when a request has ended, and for other news; wraps at 2^32. */
  get ended(): number {
    return this.#group.requests.news.seen;
  }

  /** @internal Blocks this thread until a further request has ended than `seen` counts, or the time is over. */
  waitForEndBlocking(seen: number, milliseconds: number): void {
    if (this.#group.failure !== undefined) throw this.#group.failure;
    this.#group.waitBlocking(seen, milliseconds, this.#slots.areFew && this.#channels.areFew);
  }

  /** Lets packets move, blocking this thread for so many ms at most if none do; only of use without an engine thread. */
  progress(milliseconds = 0): void {
    this.#group.progress(checkTimeout(milliseconds));
  }

  /** Closes listeners and connections, ends the engine. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw closed();
  }

  async #close(): Promise<void> {
    this.#ending.abort(closed());
    for (const listener of this.#listeners) listener.close();
    await Promise.all([...new Set(this.#connections.values())].map((connection) => connection.close()));
    await this.#group.close();
    this.#regions.clear();
    this.#leaving.clear();
  }

  async #greetGuest(
    channel: ControlChannel,
    listener: TransportListener,
    receive: TransportListenOptions['receive'],
  ): Promise<Connection | undefined> {
    let reserved: readonly Reserved[] = [];
    let incoming: IncomingConnection<Connection> | undefined;
    try {
      return await acceptPeer(channel, this.#credentials, {
        open: async (hello, lanes) => {
          // Strangers do not get this far.
          channel.deadline = performance.now() + this.settings.timeoutMs;
          incoming = await receive?.(hello);
          if (incoming?.accept === undefined) listener.checkRoom();
          reserved = await this.#group.reserve(Math.min(lanes, this.engines));
          return { options: this.#greeting(reserved), answer: incoming?.answer };
        },
        adopt: async (meeting) => {
          const connection = await this.#adopt(channel, meeting, reserved);
          if (incoming?.accept === undefined) return connection;
          incoming.accept(connection);
          return undefined;
        },
      });
    } catch (error) {
      channel.hangUp();
      incoming?.cancel?.();
      await this.#group.unreserve(reserved);
      throw error;
    }
  }

  #greeting(reserved: readonly Reserved[]): GreetingOptions {
    const { settings } = this;
    return {
      io: transportIo(settings),
      engines: reserved.map(({ engine }) => engineEnds(this.#group, engine)),
      name: this.name,
      paths: settings.transportPaths,
      segmentBytes: settings.transportSegmentBytes,
      bufferBytes: settings.transportSocketBufferBytes,
      segmentationOffload: settings.transportSegmentationOffload,
      authenticate: settings.transportAuthentication,
      receiverCredits: transportSettings(settings).receiverCredits,
      eagerBytes: settings.transportEagerBytes,
      rails: this.#rails,
      spread: settings.transportSpread,
      connectionIds: reserved.map(({ id }) => id),
    };
  }

  /** Gives what came of a meeting to the engines. `reserved`: the names that this side has offered, of which some are unused. */
  async #adopt(channel: WatchedChannel, meeting: Meeting, reserved: readonly Reserved[]): Promise<Connection> {
    const { peerName, segmentBytes, paths, spread, hello } = meeting;
    if (this.#group.failure !== undefined) {
      paths[Symbol.dispose]();
      throw this.#group.failure;
    }
    const ends = await this.#group.connect(meeting, reserved);
    const keys = ends.map(({ engine, number }) => `${engine} ${number}`);
    const connection = new Connection({
      group: this.#group,
      slots: this.#slots,
      channels: this.#channels,
      channel,
      ends,
      spread,
      isRegistered: (region) => this.#regions.has(region.number),
      peerName,
      paths: paths.count,
      rails: paths.rails,
      segmentBytes,
      cutsSends: paths.cutsSends,
      hello,
      onClose: () => {
        for (const key of keys) this.#connections.delete(key);
      },
    });
    for (const key of keys) this.#connections.set(key, connection);
    const rails = paths.rails.map(({ local, remote }) => `${local} - ${remote}`).join(', ');
    log('transport', 'debug', `${this.name}: ${peerName} over ${ends.length} engines (${spread}), rails ${rails}`);
    if (this.#closing === undefined) return connection;
    await connection.close();
    throw closed();
  }

  #handle(event: HostEvent, engine: number): void {
    if (event.event === 'failed') return this.#slots.failed(event.slot, event.error);
    if (event.event === 'channel') return this.#channels.failed(event.channel, event.error);
    const connection = this.#connections.get(`${engine} ${event.connection}`);
    if (event.event === 'path') return connection?.notePath(engine, event.path, event.deadSince);
    // Each lane tells of the end; the first one says why.
    if (connection?.error === undefined) this.#logEnd(event.error);
    connection?.endWith(engine, event.error);
  }

  /** A peer that closes says so with a reason; whatever else ends a connection is somebody's trouble. */
  #logEnd({ code, message, details }: EncodedError): void {
    if (code === 'WL_CLOSED') return;
    log('transport', 'reason' in details ? 'info' : 'warn', `${this.name}: ${message}`);
  }
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The transport was closed');
}

/** Fails with WL_INVALID_ARGUMENT: peers and logs show the name as it is. */
function checkName(name: unknown): void {
  if (name === undefined || (typeof name === 'string' && isPrintable(name))) return;
  throw invalidArgument('name', name, 'a string without control or invisible characters');
}

/** Fails with WL_CONFIG for settings, with WL_UNSUPPORTED where system calls are missing. */
export async function openEngines(given: Settings, wake?: WakeWord): Promise<EngineGroup> {
  startTracing(given);
  const settings = suitCores(given);
  const requests = new SharedRequests(wake);
  const engines = engineCount(settings);
  const rings = Array.from({ length: engines }, () => new CommandRing());
  const shared: SharedParts = { requests, rings };
  if (settings.transportThread) return startThreads(settings, shared);
  const link = new InlineLink(settings, shared);
  return new EngineGroup(requests, [link]);
}

async function startThreads(settings: Settings, shared: SharedParts): Promise<EngineGroup> {
  const entry = packageFile('./engine-worker.js', import.meta.url);
  const starts = await Promise.allSettled(
    shared.rings.map((_, engine) => ThreadLink.start(entry, settings, engine, shared)),
  );
  const links = starts.flatMap((start) => (start.status === 'fulfilled' ? [start.value] : []));
  const bells: Doorbell[] = [];
  const group = new EngineGroup(shared.requests, links, bells);
  try {
    for (const start of starts) if (start.status === 'rejected') throw start.reason;
    if (links.length > 1) {
      for (const link of links) {
        const bell = link.duplicateBell();
        if (bell !== undefined) bells.push(bell);
      }
      await Promise.all(links.map((link) => link.meet(bells)));
    }
    return group;
  } catch (error) {
    await group.close().catch(() => {});
    throw error;
  }
}
