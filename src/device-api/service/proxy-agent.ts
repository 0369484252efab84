// The agent of a proxy thread: its registered memory, its peers, and a channel per peer that commands are posted to.
import { Agent, carrierAcrossHosts } from '../../agent/agent.ts';
import type { ChannelParts, PeerOptions } from '../../agent/agent-options.ts';
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
import { WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { viewAt } from '../../native/library.ts';
import { AgentRoute, StagedStores } from './agent-route.ts';
import type { CommandRoute, ServedRequest } from './command-server.ts';
import type {
  AddRemoteOptions,
  Allocation,
  MetadataExchangeOptions,
  ProxyThread,
  ProxyRegisterOptions,
  RequestOptions,
} from './proxy-messages.ts';

export class ProxyAgent {
  readonly #agent: Agent;
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

  static async create({
    name,
    backends,
    token,
    settings,
    ordinals = [],
    host,
    stagesHostMemory = false,
    acrossHosts = false,
  }: ProxyThread): Promise<ProxyAgent> {
    const devices = new Map<number, CudaDevice>();
    try {
      for (const ordinal of ordinals) devices.set(ordinal, await CudaDevice.create({ ...settings, ordinal }));
      const options = { settings, token, stagesHostMemory, ...(host === undefined ? {} : { host }) };
      const made = await Agent.create(name, { ...options, ...(backends === undefined ? {} : { backends }) });
      return new ProxyAgent(made, devices, acrossHosts);
    } catch (error) {
      for (const device of devices.values()) await device.close();
      throw error;
    }
  }

  private constructor(agent: Agent, devices: ReadonlyMap<number, CudaDevice>, acrossHosts: boolean) {
    this.#agent = agent;
    this.#acrossHosts = acrossHosts;
    this.#devices = devices;
  }

  /** Host memory. */
  async allocate(bytes: number): Promise<Allocation> {
    const registration = await this.#agent.allocate(bytes);
    this.#registrations.set(registration.number, registration);
    return { id: registration.number, address: registration.address };
  }

  /** Registers memory of this process. */
  async register({ address, bytes, ordinal }: ProxyRegisterOptions): Promise<number> {
    const device = ordinal === undefined ? undefined : this.#devices.get(ordinal);
    const memory = device === undefined ? new Uint8Array(viewAt(address, bytes)) : { device, address, bytes };
    const registration = await this.#agent.register(memory);
    this.#registrations.set(registration.number, registration);
    return registration.number;
  }

  async deregister(region: number): Promise<void> {
    await this.#registrations.get(region)!.close();
    this.#registrations.delete(region);
  }

  metadata(): Uint8Array {
    return this.#agent.localMetadata();
  }

  async addRemote({ metadata, ...options }: AddRemoteOptions): Promise<string> {
    const name = await this.#agent.loadRemoteMetadata(metadata, options);
    this.#watch(name);
    return name;
  }

  checkRemote(peer: string): void {
    this.#agent.remoteMemory(peer);
  }

  async removeRemote(peer: string): Promise<boolean> {
    const wasKnown = await this.#agent.forget(peer);
    for (const [link, channels] of this.#channels) {
      if ([...channels.values()].some(({ error }) => error !== undefined)) this.#channels.delete(link);
    }
    return wasKnown;
  }

  async listen(options: ListenOptions): Promise<number> {
    const listener = await MetadataListener.open(this.#agent, options, (peer) => {
      this.#watch(peer);
    });
    return listener.port;
  }

  async exchange(how: MetadataExchangeOptions['how'], address: ListenerAddress): Promise<string | undefined> {
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

  /** Connects, if that is not done. The path is the backend's name. */
  async openRequest(
    options: RequestOptions,
    signal: AbortSignal,
  ): Promise<{ readonly request: ServedRequest; readonly path: BackendName }> {
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
    return { request: { peer: options.peer, remotes }, path: path as BackendName };
  }

  /** Hot path. */
  poll(): boolean {
    return this.#agent.poll();
  }

  async close(): Promise<void> {
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
