// The thread that serves a device's command queues: the agent that their commands are posted to, its registered memory, peers
// and channels; it polls the queues, and sleeps when nothing comes.
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { MessagePort } from 'node:worker_threads';
import { Agent, carrierAcrossHosts } from '../../agent/agent.ts';
import type { ChannelParts, LoadOptions, PeerOptions } from '../../agent/agent-options.ts';
import type { BackendChannel, BackendLink, PutPlace } from '../../agent/backend.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import {
  exchangeMetadata,
  fetchMetadata,
  type ListenerAddress,
  type ListenOptions,
  MetadataListener,
  sendInvalidation,
  sendMetadata,
} from '../../agent/exchange/metadata-exchange.ts';
import type { Registration } from '../../agent/registration.ts';
import { Deadline } from '../../core/deadline.ts';
import { type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { bindDeclaredFunctions, viewAt } from '../../native/library.ts';
import type { Settings } from '../../settings/settings.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { WorkerPort } from '../../threads/worker-link.ts';
import { AgentRoute, type PeerRange, StagedStores } from './agent-route.ts';
import { CommandReader, queuesIn } from './command-queue.ts';
import { type CommandRoute, CommandServer, type ServedRequest } from './command-server.ts';

/** What the thread is started with. */
export interface ProxyThread {
  /** What peers call it. */
  readonly name: string;
  readonly settings: Settings;
  /** Peers must have the same; see Agent. */
  readonly token: string;
  readonly backends?: readonly BackendName[] | undefined;
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string | undefined;
  /** See AgentOptions. */
  readonly stagesHostMemory?: boolean | undefined;
  /**
   * Peers are on other hosts, also where those are containers of this machine: the backend that carries memory within a
   * machine is left out. What a peer that has closed its side did not take counts as delivered, and a failure with WL_CLOSED
   * tells of each such peer.
   */
  readonly acrossHosts?: boolean | undefined;
  /** GPUs whose memory is registered; none by default. */
  readonly ordinals?: readonly number[];
  /** The memory of a WakeWord: rung when a queue or a call has something for a thread that sleeps. */
  readonly wake: SharedArrayBuffer;
}

/** Memory that both threads of the process reach: shared, or by its native address. */
export type SharedBytes = SharedArrayBuffer | { readonly address: number; readonly bytes: number };

interface RequestOptions {
  readonly number: number;
  readonly region: number;
  readonly offset: number;
  readonly bytes: number;
  readonly peer: string;
  readonly remotes: readonly PeerRange[];
  /** Nobody else writes to their counters, which are 0. */
  readonly isSoleWriter: boolean;
  /**
   * Requests of different lanes wait for nothing of each other, and may go by different engines; those of one share a
   * channel. See ChannelOptions. Left out: all requests to the peer share a channel that uses every engine.
   */
  readonly lane?: number | undefined;
}

/** Memory that the agent made and registered. */
export interface Allocation {
  readonly id: number;
  readonly address: number;
}

export interface QueueOptions {
  readonly memory: SharedBytes;
  readonly queues: number;
  readonly capacity: number;
}

interface ProxyRegisterOptions {
  readonly address: number;
  readonly bytes: number;
  /** The GPU that it is of; the host if there is none. */
  readonly ordinal?: number | undefined;
}

export interface MetadataExchangeOptions {
  readonly how: 'exchange' | 'fetch' | 'send' | 'invalidate';
  readonly address: Omit<ListenerAddress, 'signal'>;
}

/** See Agent.loadRemoteMetadata. */
interface AddRemoteOptions extends Omit<LoadOptions, 'signal'> {
  readonly metadata: Uint8Array;
}

/** What the thread does when it is called; what it tells unasked is why a command could not be carried out. */
export type ProxyCalls = Omit<ProxyAgent, 'step' | 'nextEnd'>;

/** How long the queues are polled in one turn of the event loop. */
const TURN_MS = 0.05;
/** Rounds between two looks at the clock. */
const ROUNDS = 4;
/** Looks at the queues between two looks at the agent. */
const LOOKS = 4;
/** Longest sleep between two looks at a device's queue, which cannot wake this thread. */
const LONGEST_SLEEP_MS = 1;
/** The same while kernels may be launched without a ring, as those of graphs that others replay. */
const LONGEST_UNANNOUNCED_SLEEP_MS = 0.1;

export async function run(options: ProxyThread, messages: MessagePort): Promise<void> {
  const port = new WorkerPort<EncodedError>(messages);
  const wake = new WakeWord(options.wake);
  /** Each failure is reported once: commands that follow fail for the same reason. */
  const reported = new WeakSet<WeftlineError>();
  function reportFailure(error: WeftlineError): void {
    if (reported.has(error)) return;
    reported.add(error);
    port.send(encodeError(error));
  }

  const proxy = await ProxyAgent.create(options, reportFailure);
  // The agent's backend was imported only now.
  bindDeclaredFunctions();
  port.serve(proxy);
  const spinMs = options.settings.proxySpinUs / 1000;
  let lastWork = performance.now();
  let lastSeen = wake.seen;
  let sleepMs = 0.05;
  while (!port.isStopped) {
    const seen = wake.seen;
    let now = performance.now();
    // A ring says that something comes, maybe from a device, which cannot ring itself.
    if (seen !== lastSeen) lastWork = now;
    lastSeen = seen;
    const turnEnd = now + TURN_MS;
    let hasWork = false;
    do {
      for (let round = 0; round < ROUNDS; round += 1) hasWork = proxy.step() || hasWork;
      now = performance.now();
    } while (now < turnEnd && (hasWork || now - lastWork < spinMs));
    if (hasWork) lastWork = now;
    // A kernel may wait for what a peer that is dead was to send, with no command of its own under way.
    const end = proxy.nextEnd();
    if (end !== undefined) reportFailure(end);
    if (hasWork || now - lastWork < spinMs) {
      sleepMs = 0.05;
    } else {
      const longest = wake.expectsUnannounced ? LONGEST_UNANNOUNCED_SLEEP_MS : LONGEST_SLEEP_MS;
      wake.sleepBlocking(seen, Math.min(sleepMs, longest));
      sleepMs = Math.min(sleepMs * 2, longest);
    }
    await nextTurn();
  }
}

/** Calls of a ProxyService. */
class ProxyAgent {
  readonly #agent: Agent;
  readonly #requests: (ServedRequest | undefined)[] = [];
  readonly #servers: CommandServer[] = [];
  readonly #onFailure: (error: WeftlineError) => void;
  /** This thread's own objects for the GPUs; their contexts and memory are those of the process. */
  readonly #devices: ReadonlyMap<number, CudaDevice>;
  readonly #registrations = new Map<number, Registration>();
  /** Channels by lane of each link. */
  readonly #channels = new Map<BackendLink, Map<number | undefined, BackendChannel>>();
  readonly #acrossHosts: boolean;
  /** Links to peers whose death was not told. */
  readonly #watched = new Set<BackendLink>();
  /** Why peers were lost before they could be watched. */
  readonly #lost: WeftlineError[] = [];
  /** Memory from which 8 bytes are put on channels that cannot store them. */
  readonly #staging = new Map<BackendChannel, { readonly stores: StagedStores; readonly memory: Registration }>();

  static async create(
    {
      name,
      backends,
      token,
      settings,
      ordinals = [],
      host,
      stagesHostMemory = false,
      acrossHosts = false,
    }: ProxyThread,
    onFailure: (error: WeftlineError) => void,
  ): Promise<ProxyAgent> {
    const devices = new Map<number, CudaDevice>();
    try {
      for (const ordinal of ordinals) devices.set(ordinal, await CudaDevice.create({ ...settings, ordinal }));
      const options = { settings, token, stagesHostMemory, ...(host === undefined ? {} : { host }) };
      const made = await Agent.create(name, { ...options, ...(backends === undefined ? {} : { backends }) });
      return new ProxyAgent({ agent: made, devices, acrossHosts, onFailure });
    } catch (error) {
      for (const device of devices.values()) await device.close();
      throw error;
    }
  }

  private constructor(parts: {
    readonly agent: Agent;
    readonly devices: ReadonlyMap<number, CudaDevice>;
    readonly acrossHosts: boolean;
    readonly onFailure: (error: WeftlineError) => void;
  }) {
    this.#agent = parts.agent;
    this.#devices = parts.devices;
    this.#acrossHosts = parts.acrossHosts;
    this.#onFailure = parts.onFailure;
  }

  /** Begins to carry out the commands of the queues, which stay in place until the service is closed. */
  serve({ memory, queues, capacity }: QueueOptions): void {
    const buffer = memory instanceof SharedArrayBuffer ? memory : viewAt(memory.address, memory.bytes);
    const serving = { onFailure: this.#onFailure, ignoresClosed: this.#acrossHosts };
    for (const queue of queuesIn(buffer, queues, capacity)) {
      this.#servers.push(new CommandServer(new CommandReader(queue), this.#requests, serving));
    }
  }

  /** Zeroed memory of the host, registered. Freed when it is deregistered. */
  async allocate(bytes: number): Promise<Allocation> {
    const registration = await this.#agent.allocate(bytes);
    this.#registrations.set(registration.number, registration);
    return { id: registration.number, address: registration.address };
  }

  /** Memory of this process: of the GPU `ordinal`, or of the host. Returns the number of the region. */
  async register({ address, bytes, ordinal }: ProxyRegisterOptions): Promise<number> {
    const device = ordinal === undefined ? undefined : this.#devices.get(ordinal);
    const memory = device === undefined ? new Uint8Array(viewAt(address, bytes)) : { device, address, bytes };
    const registration = await this.#agent.register(memory);
    this.#registrations.set(registration.number, registration);
    return registration.number;
  }

  /** Peers can no longer use the region; no request may. */
  async deregister(region: number): Promise<void> {
    await this.#registrations.get(region)!.close();
    this.#registrations.delete(region);
  }

  /** What a peer's addRemote() takes, of what is registered now. */
  metadata(): Uint8Array {
    return this.#agent.localMetadata();
  }

  /** Returns the peer's name. See Agent.loadRemoteMetadata. */
  async addRemote({ metadata, ...options }: AddRemoteOptions): Promise<string> {
    const name = await this.#agent.loadRemoteMetadata(metadata, options);
    this.#watch(name);
    return name;
  }

  /** Fails with WL_INVALID_ARGUMENT unless the peer is known. Peers may have come by the listener. */
  checkRemote(peer: string): void {
    this.#agent.remoteMemory(peer);
  }

  /** Forgets a peer to which no request goes. False if it is not known. */
  async removeRemote(peer: string): Promise<boolean> {
    const wasKnown = await this.#agent.forget(peer);
    for (const [link, channels] of this.#channels) {
      if ([...channels.values()].some(({ error }) => error !== undefined)) this.#channels.delete(link);
    }
    return wasKnown;
  }

  /** Takes metadata of peers that connect, and gives its own. Returns the port. */
  async listen(options: ListenOptions): Promise<number> {
    const listener = await MetadataListener.open(this.#agent, options, (peer) => {
      this.#watch(peer);
    });
    return listener.port;
  }

  /** Returns the peer's name, if its metadata came. */
  async exchange({ how, address: plain }: MetadataExchangeOptions, signal: AbortSignal): Promise<string | undefined> {
    const address = { ...plain, signal };
    if (how === 'send') await sendMetadata(this.#agent, address);
    else if (how === 'invalidate') await sendInvalidation(this.#agent, address);
    else {
      const name = await (how === 'fetch' ? fetchMetadata : exchangeMetadata)(this.#agent, address);
      this.#watch(name);
      return name;
    }
    return undefined;
  }

  /**
   * Kernels may wait for a peer to which nothing goes from here, or not through a queue. Links in the background: a silent peer
   * holds up nobody. A peer that cannot be watched is left alone: the first request that needs the link fails with the reason.
   */
  #watch(name: string): void {
    // Every peer of another host gets a request, and so a link to watch.
    if (this.#acrossHosts) return;
    this.#agent.linkTo(name).then(
      (link) => this.#watched.add(link),
      (error: unknown) => {
        // It died before it was linked to.
        if (error instanceof WeftlineError && error.code === 'WL_PEER_LOST') this.#lost.push(error);
        else log('device-api', 'info', `${this.#agent.name}: ${name} is not watched: ${String(error)}`);
      },
    );
  }

  /** Opens the way to the ranges, after which commands of the request are carried out. Returns the backend's name. */
  async request(options: RequestOptions, signal: AbortSignal): Promise<BackendName> {
    const registration = this.#registrations.get(options.region)!;
    const remotes: CommandRoute[] = [];
    let path: BackendName | undefined;
    const deadline = new Deadline(this.#agent.settings.timeoutMs);
    const backend = this.#acrossHosts ? carrierAcrossHosts(this.#agent, options.peer) : undefined;
    const wait = { deadline, signal, ...(backend === undefined ? {} : { backend }) };
    for (const range of options.remotes) {
      const parts = await this.#channelParts(options.peer, registration, range.region, wait);
      path ??= parts.backend;
      const { link, local, remote } = parts;
      const place: PutPlace = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
      const channel = this.#channel(link, options.lane);
      this.#watched.add(link);
      await channel.prepare?.(local, remote);
      const staged =
        channel.store === undefined
          ? await this.#stagedStores(channel, { backend: parts.backend, deadline }, options)
          : undefined;
      remotes.push(new AgentRoute({ channel, place, staged }, { ...options, range }));
    }
    this.#requests[options.number] = { peer: options.peer, remotes };
    return path as BackendName;
  }

  releaseRequest(number: number): void {
    this.#requests[number] = undefined;
  }

  /** Resolves when all commands that were pushed before are delivered or have failed. */
  async settle(_: undefined, signal: AbortSignal): Promise<void> {
    for (;;) {
      let isQuiet = true;
      for (const server of this.#servers) isQuiet = !server.step() && server.isIdle && isQuiet;
      if (isQuiet) return;
      this.#agent.poll();
      signal.throwIfAborted();
      await nextTurn();
    }
  }

  /** Hot path. Some looks at the queues and one at the agent, which costs more; true if anything happened. */
  step(): boolean {
    let hasWork = false;
    for (let look = 0; look < LOOKS; look += 1) {
      for (const server of this.#servers) hasWork = server.step() || hasWork;
    }
    return this.#agent.poll() || hasWork;
  }

  async stop(): Promise<void> {
    await this.#agent.close();
    for (const device of this.#devices.values()) await device.close();
  }

  /** Across hosts all memory is of one kind, so that nothing has to be in order with what is staged. */
  // oxlint-disable-next-line max-params -- those of the agent's method
  async #channelParts(peer: string, local: Registration, remote: number, options: PeerOptions): Promise<ChannelParts> {
    const parts = await this.#agent.channelParts(peer, local, remote, options);
    const direct = this.#acrossHosts ? parts.link.unstaged?.(parts.local, parts.remote) : undefined;
    return { ...parts, ...direct };
  }

  async #stagedStores(
    channel: BackendChannel,
    { backend, deadline }: { readonly backend: BackendName; readonly deadline: Deadline },
    { peer, remotes }: RequestOptions,
  ): Promise<StagedStores> {
    const known = this.#staging.get(channel);
    if (known !== undefined) return known.stores;
    for (const [ended, { memory }] of this.#staging) {
      // Nothing is posted to a channel that has failed.
      if (ended.error === undefined) continue;
      this.#staging.delete(ended);
      await memory.close();
    }
    const memory = await this.#agent.allocate(StagedStores.bytes);
    const region = remotes[0]!.region;
    const { local } = await this.#channelParts(peer, memory, region, { backend, deadline });
    const stores = new StagedStores(channel, local, viewAt(memory.address, StagedStores.bytes));
    this.#staging.set(channel, { stores, memory });
    return stores;
  }

  /**
   * Why a peer that died was lost, told once; undefined if none was. One that closed its agent may do so, and is told of
   * across hosts alone.
   */
  nextEnd(): WeftlineError | undefined {
    const lost = this.#lost.shift();
    if (lost !== undefined) return lost;
    for (const link of this.#watched) {
      const { state } = link;
      if (state === 'open') continue;
      this.#watched.delete(link);
      if (state === 'dead' || this.#acrossHosts) return link.error;
    }
    return undefined;
  }

  /** One per lane of a link, whichever queue a command comes from: within it, all is in order. */
  #channel(link: BackendLink, lane: number | undefined): BackendChannel {
    let channels = this.#channels.get(link);
    if (channels === undefined) {
      channels = new Map();
      this.#channels.set(link, channels);
    }
    let channel = channels.get(lane);
    if (channel === undefined || channel.error !== undefined) {
      channel = link.openChannel(lane === undefined ? {} : { lane });
      channels.set(lane, channel);
    }
    return channel;
  }
}
