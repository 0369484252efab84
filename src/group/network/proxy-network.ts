// The way of a device's kernels to the group's ranks on other hosts: a thread that posts what they push to command queues,
// and a request for each channel to each peer. Cells in which signals of peers are counted lie in the memory that peers write.
import type { BackendName } from '../../agent/backends/backend-table.ts';
import { queueCommandKinds } from '../../abi/device-api.ts';
import { networkCells } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { CommandWriter, emptyQueueCommand, queueBytes } from '../../device-api/service/command-queue.ts';
import type { QueueOptions } from '../../device-api/service/proxy-worker.ts';
import { ProxyService } from '../../device-api/service/proxy-service.ts';
import { readToken } from '../../settings/settings.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { closeAtEnd } from './close-at-end.ts';
import { type HostRoutes, hostRoutes } from './host-routes.ts';
import { meetPeers } from './peer-meeting.ts';
import type { PeerWords } from './peer-words.ts';

interface ProxyNetworkOptions extends CallWait {
  readonly group: RankGroup;
  /** The object's name, for agents and errors. */
  readonly name: string;
  /** What peers write to and what puts come from, laid out alike on all ranks: of the GPU `ordinal`, or of the host. It does not move. */
  readonly memory: { readonly address: number; readonly bytes: number; readonly ordinal?: number | undefined };
  /** Host memory in which hosts say why they give up, at the same offsets; `memory` if it is left out. */
  readonly wordMemory?: { readonly address: number; readonly bytes: number };
  /** What peers say there. */
  readonly words: PeerWords;
  /** Backends that take the memory; all by default. */
  readonly backends?: readonly BackendName[] | undefined;
  /** In place of the group's setting. */
  readonly rdmaDevices?: string | undefined;
  /** What the device's kernels push to. */
  readonly queues: QueueOptions;
  /**
   * Hears why a peer is out of reach or, with WL_CLOSED, that it closed its side; `peer` is its rank in the group. Without a
   * peer the thread itself has failed.
   */
  readonly onEnd: (error: WeftlineError, peer: number | undefined) => void;
}

interface HostPut {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
}

interface Told {
  readonly metadata: string;
  readonly region: number;
  /** The region of `wordMemory`. */
  readonly words: number;
}

/** Names of agents tell objects of one process apart. */
let created = 0;
/** The host pushes a few commands per peer at most. */
const HOST_QUEUE_CAPACITY = 256;
/** How long a rank that has given up waits for what it told its peers to be delivered. */
const FAREWELL_MS = 500;

export class ProxyNetwork implements AsyncDisposable {
  readonly routes: HostRoutes;
  /** Channels to each peer, the same on all ranks. */
  channels = 1;
  readonly #options: ProxyNetworkOptions;
  readonly #service: ProxyService;
  /** Ranks in the group by the names of their agents. */
  readonly #ranks = new Map<string, number>();
  /** Numbers of the requests, by peer, then channel. */
  readonly #requests = new Map<number, readonly number[]>();
  /** Numbers of the requests by which this rank says why it gives up, by peer. */
  readonly #farewells = new Map<number, number>();
  readonly #carriers = new Map<number, BackendName>();
  /** What the host itself has to say. */
  readonly #words = new SharedArrayBuffer(queueBytes(HOST_QUEUE_CAPACITY));
  readonly #writer = new CommandWriter({ buffer: this.#words, byteOffset: 0, capacity: HOST_QUEUE_CAPACITY });
  readonly #command = emptyQueueCommand();
  readonly #keepOpenAtEnd: () => void = closeAtEnd(() => this.close());
  #region = 0;
  #wordRegion = 0;
  #hasGivenUp = false;
  #closing: Promise<void> | undefined;

  /** Collective over a group on several hosts. Fails alike on all ranks. */
  static async create(options: ProxyNetworkOptions): Promise<ProxyNetwork> {
    const { group, name } = options;
    const network = new ProxyNetwork(options);
    try {
      const meeting = {
        name: `network/${name}`,
        tell: () => network.#register(),
        peers: network.routes.peers,
        connect: (peer: number, told: Told, channels: number) => network.#connect(peer, told, channels),
      };
      network.channels = await meetPeers(group, meeting, options);
      return network;
    } catch (error) {
      network.#hasGivenUp = true;
      await network.close();
      throw error;
    }
  }

  private constructor(options: ProxyNetworkOptions) {
    const { group, name, backends, memory, rdmaDevices } = options;
    this.#options = options;
    this.routes = hostRoutes(group.topology.hosts, group.rank);
    this.#service = new ProxyService({
      name: `${name}-proxy-${created++}-rank-${group.worldRank}`,
      settings: rdmaDevices === undefined ? group.settings : { ...group.settings, rdmaDevices },
      token: readToken(undefined),
      acrossHosts: true,
      backends,
      ordinals: memory.ordinal === undefined ? [] : [memory.ordinal],
      onFailure: (error) => options.onEnd(error, this.#peerOf(error)),
    });
  }

  /** The backend that carries to each peer, for reports. */
  get carriers(): ReadonlyMap<number, BackendName> {
    return this.#carriers;
  }

  /** What commands call the way to a peer's memory by one of the channels. */
  requestTo(peer: number, channel: number): number {
    return this.#requests.get(peer)![channel]!;
  }

  /** Hot path. Commands will come soon: the thread looks for them without sleeping for a while. */
  wake(): void {
    this.#service.wake();
  }

  /** Commands may come at any time from now on, without a wake(): see ProxyService. Returns a function that ends this. */
  expectKernels(): () => void {
    return this.#service.expectUnannounced();
  }

  /**
   * Puts bytes of this rank's memory into a peer's as the host's own command, offsets in both; for benchmarks. False if there
   * is no room now.
   */
  put(peer: number, channel: number, { from, to, bytes }: HostPut): boolean {
    return this.#put(this.requestTo(peer, channel), { from, to, bytes });
  }

  #put(request: number, { from, to, bytes }: HostPut): boolean {
    const command = this.#command;
    command.kind = queueCommandKinds.put;
    command.request = request;
    command.source = from;
    command.target = to;
    command.bytes = bytes;
    return this.#writer.push(command);
  }

  /** All that the host itself has pushed is at the peers. */
  get isDelivered(): boolean {
    return this.#writer.isDelivered(this.#writer.pushed);
  }

  /** Tells the peers that this rank has given up and why, so that they need not wait for their deadline. Never throws. */
  giveUp(error: unknown): void {
    if (this.#hasGivenUp) return;
    this.#hasGivenUp = true;
    const { group, words } = this.#options;
    const { offset, bytes } = words.write(group.rank, error);
    const command = this.#command;
    for (const request of this.#farewells.values()) {
      this.#put(request, { from: offset, to: offset, bytes });
      command.kind = queueCommandKinds.signal;
      command.target = words.cellOf(group.rank, networkCells.abort);
      command.low = 1;
      this.#writer.push(command);
    }
    this.wake();
  }

  /** When no kernel pushes any more: what was pushed is delivered first. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#keepOpenAtEnd();
    const { group } = this.#options;
    const timeoutMs = this.#hasGivenUp ? FAREWELL_MS : group.settings.timeoutMs;
    // What a peer does not take, it does not need: it has ended or given up.
    await this.#service.settle({ timeoutMs }).catch(() => {});
    await this.#service.close();
  }

  async #register(): Promise<Told> {
    const { memory, wordMemory, queues } = this.#options;
    const service = this.#service;
    this.#region = await service.call('register', memory);
    this.#wordRegion = wordMemory === undefined ? this.#region : await service.call('register', wordMemory);
    await service.call('serve', queues);
    await service.call('serve', { memory: this.#words, queues: 1, capacity: HOST_QUEUE_CAPACITY });
    const metadata = Buffer.from(await service.call('metadata')).toString('base64');
    return { metadata, region: this.#region, words: this.#wordRegion };
  }

  async #connect(peer: number, { metadata, region, words }: Told, channels: number): Promise<void> {
    const service = this.#service;
    const { memory, words: own } = this.#options;
    const name = await service.call('addRemote', { metadata: Buffer.from(metadata, 'base64'), heard: true });
    this.#ranks.set(name, peer);
    const open = async (lane: number, [from, to]: readonly [number, number], bytes: number): Promise<number> => {
      const number = service.takeNumber();
      const range = { offset: 0, bytes };
      const request = { number, region: from, ...range, peer: name, remotes: [{ region: to, ...range }] };
      this.#carriers.set(peer, await service.call('request', { ...request, isSoleWriter: false, lane }));
      return number;
    };
    const numbers: number[] = [];
    for (let lane = 0; lane < channels; lane++) numbers.push(await open(lane, [this.#region, region], memory.bytes));
    this.#requests.set(peer, numbers);
    // ORDER: on the channel of the first lane, behind what was pushed there before.
    this.#farewells.set(peer, await open(0, [this.#wordRegion, words], own.end));
  }

  /** The rank whose agent an error names. */
  #peerOf({ details }: WeftlineError): number | undefined {
    const { peer } = details;
    return typeof peer === 'string' ? this.#ranks.get(peer.replace(/^agent /, '')) : undefined;
  }
}
