// The way of a collective object to the group's ranks on other hosts: windows registered with the rank's agent, channels to
// each peer, and cells in which signals of peers are counted.
import { type Agent, carrierAcrossHosts } from '../../agent/agent.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { Registration } from '../../agent/registration.ts';
import { MAX_NETWORK_CHANNELS, networkCells } from '../../abi/network.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';
import type { LocalBarrier } from '../../windows/local-barrier.ts';
import type { SharedWord } from '../../windows/wait.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { closeAtEnd } from './close-at-end.ts';
import { type HostRoutes, hostRoutes } from './host-routes.ts';
import { NetworkLink } from './network-link.ts';
import { meetPeers, outOfReach } from './peer-meeting.ts';
import { PeerWords } from './peer-words.ts';
import { SharedAgent } from './shared-agent.ts';

/** Memory that ranks of other hosts write to: a window that the ranks of this host share, or memory of this rank alone. */
interface NetworkWindow {
  /** Address of this rank's part. */
  readonly address: number;
  /** What peers may write to: the parts of all ranks that share it. */
  readonly parts: MemoryRange;
  /** Offset within `parts` of the part of the rank of that scale-up index, the same on every host. */
  offsetOf(index: number): number;
}

/** Memory of this rank alone, which the ranks of its host do not map. */
export function privateWindow(parts: MemoryRange): NetworkWindow {
  return { address: parts.address, parts, offsetOf: () => 0 };
}

/** What a collective object waits for across hosts. */
interface NetworkWait {
  /** Asked after each look at the network; does the work that has become possible. */
  isDone(): boolean;
  /** True if something of this peer is missing, as of the last isDone(). One that has closed its side sends nothing more. */
  awaits(peer: number): boolean;
  /** The begin of a sentence for the error of a wait that takes too long. */
  describe(): string;
}

/** Whether a peer that was just seen to have closed its side still owes something. */
export function owes(peer: number, what: Pick<NetworkWait, 'isDone' | 'awaits'>): boolean {
  // ORDER: what it sent before it closed is here by now, but may have come since the last look.
  return !what.isDone() && what.awaits(peer);
}

interface HostNetworkOptions extends CallWait {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** The object's name, for agents and errors. */
  readonly name: string;
  /** The barrier of the object's calls on this host: waits end when a rank here gives up. */
  readonly barrier: LocalBarrier;
  /** What peers write to; the first one has the cells and the reasons of peers that gave up. */
  readonly windows: readonly NetworkWindow[];
  /** Offsets in the first window: of the cells, and of a slot per rank for what it says when it gives up. */
  readonly cells: number;
  readonly aborts: number;
  /** Most rows that one call sends to a peer, and the number of the window that they go to. */
  readonly rows: { readonly rows: number; readonly rowWindow: number };
  /** Who sends to whom, the same rule on all ranks; by default hostRoutes(). */
  readonly routes?: HostRoutes;
  /** Most channels to each peer. One keeps everything to a peer in order. */
  readonly mostChannels?: number;
  /** How it is closed when the program has ended without that. */
  readonly endsWith?: CloseOptions;
}

interface CloseOptions {
  /**
   * Other ranks of a host may still need what comes to it through a rank that has closed its side: what this one sent is
   * delivered all the same, and it waits until those it takes it in for have closed theirs, for as long as a call would.
   */
  readonly untilSourcesLeft?: boolean;
}

/** What a rank tells of its windows, by which others link to it; JSON. */
export interface NetworkFacts {
  /** The agent's name. */
  readonly agent: string;
  readonly metadata: string;
  readonly regions: readonly number[];
}

interface LinkWays {
  readonly channels: number;
  readonly wait: CallWait;
  /** How often the peer had closed its side before. */
  readonly closed?: number;
  /** In place of a link that is there. */
  readonly isAnew?: boolean;
}

export class HostNetwork {
  readonly routes: HostRoutes;
  readonly group: RankGroup;
  /** What peers say in the first window. */
  readonly words: PeerWords;
  /** Channels to each peer, the same on all ranks. */
  channels = 1;
  readonly #shared: SharedAgent;
  readonly #agent: Agent;
  readonly #name: string;
  readonly #device: CpuDevice;
  readonly #barrier: LocalBarrier;
  readonly #windows: NetworkWindow[];
  readonly #rows: HostNetworkOptions['rows'];
  readonly #links = new Map<number, NetworkLink>();
  readonly #registered: (Registration | undefined)[] = [];
  #memory: Registration | undefined;
  /** The device's count of mappings when its memory was registered. */
  #mappings = -1;
  #hasGivenUp = false;
  readonly #keepOpenAtEnd: () => void;
  #endRings: (() => void) | undefined;
  #closing: Promise<void> | undefined;

  /** Collective over a group on several hosts. Fails alike on all ranks. */
  static async create(options: HostNetworkOptions): Promise<HostNetwork> {
    const made: { network?: HostNetwork } = {};
    const tell = async (): Promise<NetworkFacts> => {
      made.network = new HostNetwork(options, await SharedAgent.open(options.group));
      return made.network.#register();
    };
    const { group, name, mostChannels = MAX_NETWORK_CHANNELS } = options;
    const { peers } = options.routes ?? hostRoutes(group.topology.hosts, group.rank);
    const connect = (peer: number, told: NetworkFacts, channels: number): Promise<void> =>
      (made.network as HostNetwork).#connect(peer, told, { channels: Math.min(channels, mostChannels), wait: options });
    try {
      const channels = await meetPeers(group, { name: `network/${name}`, tell, peers, connect }, options);
      const network = made.network as HostNetwork;
      network.channels = Math.min(channels, mostChannels);
      return network;
    } catch (error) {
      await made.network?.close();
      throw error;
    }
  }

  /** Not collective: of a rank that takes the place of a former process, one channel to each peer; see relink(). */
  static async open(options: HostNetworkOptions): Promise<HostNetwork> {
    const network = new HostNetwork(options, await SharedAgent.open(options.group));
    try {
      await network.#register();
      return network;
    } catch (error) {
      await network.close();
      throw error;
    }
  }

  private constructor(options: HostNetworkOptions, shared: SharedAgent) {
    const { group, device, name, barrier, windows, cells, aborts, rows, endsWith = {} } = options;
    this.#keepOpenAtEnd = closeAtEnd(() => this.close(endsWith));
    this.#rows = rows;
    this.#barrier = barrier;
    this.group = group;
    this.words = new PeerWords(group.ranks, {
      buffer: device.memory.buffer,
      start: windows[0]!.address,
      cells,
      aborts,
    });
    this.routes = options.routes ?? hostRoutes(group.topology.hosts, group.rank);
    this.#shared = shared;
    this.#agent = shared.agent;
    this.#name = name;
    this.#device = device;
    this.#windows = [...windows];
    barrier.failure.alsoHear(() => this.#told());
    // Peers on other hosts need acks of an engine on this thread while it waits for the ranks of its own host.
    if (!this.#agent.settings.transportThread) this.#barrier.workWhileWaiting(() => this.#answerPeers());
  }

  /** The backend that carries to each peer, for reports. */
  get carriers(): ReadonlyMap<number, BackendName> {
    return new Map([...this.#links].map(([rank, link]) => [rank, link.backend]));
  }

  /** Bytes that puts to other hosts have carried so far. */
  get sentBytes(): number {
    let bytes = 0;
    for (const link of this.#links.values()) bytes += link.bytes;
    return bytes;
  }

  link(peer: number): NetworkLink {
    return this.#links.get(peer) as NetworkLink;
  }

  /** Whether there is a link to that peer that works, as far as can be seen at once. */
  isLinked(peer: number): boolean {
    const link = this.#links.get(peer);
    return link !== undefined && !link.isClosed && link.error === undefined;
  }

  /** What peers need to link to this rank. */
  get facts(): NetworkFacts {
    return this.#facts();
  }

  /**
   * Not collective: links to a peer by what it tells now. A link that works, to the same process, stays. When it resolves, nothing that a
   * former process of the peer sent can come any more.
   */
  async relink(peer: number, told: NetworkFacts, wait: CallWait): Promise<void> {
    const before = this.#agent.incarnationOf(told.agent);
    const known = this.#links.get(peer);
    const isBroken = known !== undefined && !this.isLinked(peer);
    if (isBroken && known.error !== undefined) await this.#agent.forget(told.agent);
    await this.#shared.load(told.agent, Buffer.from(told.metadata, 'base64'), told.regions);
    if (known !== undefined && !isBroken && this.#agent.incarnationOf(told.agent) === before) return;
    const closed = this.words.count(peer, networkCells.closed);
    // What is sent meanwhile goes to the former link, and nowhere.
    await this.#connect(peer, told, { channels: 1, wait, closed, isAnew: true });
    await known?.close().catch(() => {});
  }

  /** Offset in the first window's mapping at `peer` of a cell in the line that this rank adds to. */
  cellAt(peer: number, cell: number): number {
    return this.offsetAt(peer, 0, this.words.cellOf(this.group.rank, cell));
  }

  /** Offset, in the mapping of a window at `peer`'s host, of a place in the part of `peer`. */
  offsetAt(peer: number, window: number, offset: number): number {
    return this.#windows[window]!.offsetOf(this.group.topology.scaleUpIndexOf(peer)) + offset;
  }

  /** The address of this rank's part of a window. */
  windowAddress(window: number): number {
    return this.#windows[window]!.address;
  }

  /** True if what lies below `end` in this device's memory can be put from: RDMA devices know the pages of then. */
  hasMemory(end: number): boolean {
    return this.#memory !== undefined && end <= this.#memory.length && this.#mappings === this.#device.mappings;
  }

  /** Makes all of this device's memory a place to put from, after it has grown or files were mapped into it. Nothing may be under way: settle before. */
  async useMemory(): Promise<void> {
    const before = this.#memory;
    this.#mappings = this.#device.mappings;
    this.#memory = await this.#agent.register(new Uint8Array(this.#device.memory.buffer));
    for (const link of this.#links.values()) await link.useMemory(this.#memory);
    if (before !== undefined) await before.close();
  }

  /** A call begins: nothing of an earlier one is under way from this rank. */
  begin(): void {
    for (const link of this.#links.values()) link.begin();
  }

  /** Hot path. Takes in what has come, posts what there is room for. */
  advance(): void {
    this.#agent.poll();
    for (const link of this.#links.values()) link.advance();
  }

  /** From now on what comes from other hosts rings this rank's bell, which lies in one of the windows. */
  ring(bell: SharedWord): void {
    this.#endRings = this.#agent.alsoRing(bell);
  }

  /** Hot path. Behind advance(), if it brought nothing: whether all that comes until the next one rings the bell. */
  isRung(): boolean {
    return this.#endRings !== undefined && this.#agent.ringsForAll();
  }

  get isDelivered(): boolean {
    for (const link of this.#links.values()) if (!link.isDelivered) return false;
    return true;
  }

  /**
   * Fails with WL_TIMEOUT, with the reason of a link that broke, of a peer that gave up, or of a rank that was lost; the
   * caller then gives up for its host.
   */
  async until(what: NetworkWait, wait: CallWait): Promise<void> {
    const look = (): boolean => {
      this.advance();
      const done = what.isDone();
      // Work that was done may have queued puts.
      this.advance();
      if (!done) this.throwIfBroken(what);
      return done;
    };
    if (look()) return;
    const awaited = {
      get isSettled(): boolean {
        return look();
      },
      describe: () => what.describe(),
      missing: () => {
        const { ranks } = this.group;
        return { ranks: this.routes.peers.filter((peer) => what.awaits(peer)).map((peer) => ranks[peer]!) };
      },
    };
    await this.#agent.until(awaited, remaining(wait)).catch(async (error: unknown) => {
      throw await this.group.firstCause(error, { told: () => this.#barrier.failure.reason() ?? this.#told() });
    });
  }

  #answerPeers(): void {
    try {
      this.advance();
    } catch {
      // The next wait for the network throws it.
    }
  }

  /** Fails where until() would, if what is waited for is not done. */
  throwIfBroken(what: NetworkWait): void {
    this.#barrier.throwIfUnusable();
    const { peerLost, ranks } = this.group;
    if (peerLost.aborted) throw peerLost.reason;
    const told = this.#told();
    if (told !== undefined) throw told;
    for (const [peer, link] of this.#links) {
      const { error } = link;
      if (!link.isClosed) {
        if (error === undefined) continue;
        throw outOfReach(ranks[peer]!, error);
      }
      if (!owes(peer, what)) continue;
      throw new WeftlineError(
        'WL_PEER_LOST',
        `${what.describe()}: rank ${ranks[peer]} closed its ${this.#name} while other ranks were in a call`,
        { details: { peer: ranks[peer] }, rank: ranks[peer]!, ...(error && { cause: error }) },
      );
    }
  }

  /** Why a peer gave up. */
  #told(): WeftlineError | undefined {
    for (const peer of this.routes.peers) {
      const reason = this.words.told(peer);
      if (reason !== undefined) return reason;
    }
    return undefined;
  }

  /** Tells the peers that this rank has given up and why, so that they need not wait for their deadline. Never throws. */
  giveUp(error: unknown): void {
    if (this.#hasGivenUp) return;
    this.#hasGivenUp = true;
    const { offset, bytes } = this.words.write(this.group.rank, error);
    const from = this.windowAddress(0) + offset;
    for (const [peer, link] of this.#links) {
      const cell = this.cellAt(peer, networkCells.abort);
      link.giveUp({ from, to: this.offsetAt(peer, 0, offset), bytes, cell });
    }
  }

  /** A window is about to go: once it has resolved, no peer writes to it. Nothing may be under way. */
  async releaseWindow(number: number): Promise<void> {
    const before = this.#registered[number];
    this.#registered[number] = undefined;
    if (before !== undefined) await before.close();
  }

  /**
   * Collective: a window that was released has a successor.
   * @param number Which one of the options' windows.
   * @param window The new one, of the same ranks.
   * @param wait Of the call.
   */
  async replaceWindow(number: number, window: NetworkWindow, wait: CallWait): Promise<void> {
    this.#windows[number] = window;
    const tell = async (): Promise<NetworkFacts> => {
      this.#registered[number] = await this.#registerWindow(window);
      return this.#facts();
    };
    const connect = (peer: number, told: NetworkFacts, channels: number): Promise<void> =>
      this.#connect(peer, told, { channels, wait });
    const { peers } = this.routes;
    await meetPeers(this.group, { name: `network/${this.#name}/window`, tell, peers, connect }, wait);
  }

  /** Idempotent. Once it has resolved, nobody on another host writes to the windows, and nothing of them is read. */
  close({ untilSourcesLeft = false }: CloseOptions = {}): Promise<void> {
    this.#closing ??= this.#close(untilSourcesLeft);
    return this.#closing;
  }

  async #close(untilSourcesLeft: boolean): Promise<void> {
    this.#keepOpenAtEnd();
    this.#barrier.failure.alsoHear(() => undefined);
    this.#endRings?.();
    // A peer that waits for ranks of its own host would not learn from the end of this agent why no call can end well.
    if (this.#hasGivenUp) await this.#flush((link) => link.isTold);
    else await this.#sayGoodbye(untilSourcesLeft);
    if (untilSourcesLeft && !this.#hasGivenUp) await this.#sourcesLeft();
    if (!this.#shared.isLast) await this.#leave();
    await this.#shared.close();
  }

  /** What was sent arrives, and behind it the peers hear that this object is closed. */
  async #sayGoodbye(forOthers: boolean): Promise<void> {
    const isOver = (link: NetworkLink): boolean => (forOthers ? link.isTaken : link.isDelivered);
    await this.#flush(isOver);
    if (this.#hasGivenUp) return;
    for (const [peer, link] of this.#links) link.tell(this.cellAt(peer, networkCells.closed));
    // ORDER: who still sends to this object must know why its memory is gone.
    await this.#flush(isOver);
  }

  /** Returns when the ranks that this one stands for here have closed their side, given up or gone, or the time is over. */
  async #sourcesLeft(): Promise<void> {
    const { served } = this.routes;
    const hasLeft = (rank: number): boolean => {
      const link = this.link(rank);
      return link.isClosed || link.error !== undefined || this.words.count(rank, networkCells.abort) !== 0;
    };
    const look = (): boolean => {
      this.advance();
      const isOver = this.#barrier.failure.reason() !== undefined || this.group.peerLost.aborted;
      return isOver || served.every(({ rank }) => hasLeft(rank));
    };
    const left = {
      get isSettled(): boolean {
        return look();
      },
      describe: () => `Ranks of other hosts did not close their ${this.#name}`,
    };
    await this.#agent.until(left, { timeoutMs: this.group.settings.timeoutMs }).catch(() => {});
  }

  /** Takes everything of this object back from an agent that others use. */
  async #leave(): Promise<void> {
    await Promise.allSettled([...this.#links.values()].map((link) => link.close()));
    const registered = [...this.#registered, this.#memory].filter((memory) => memory !== undefined);
    const ends = await Promise.allSettled(registered.map((memory) => memory.close()));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  /** Returns when that is so of all links that are not broken; a peer that is silent does not hold it up for long. */
  async #flush(isOver: (link: NetworkLink) => boolean): Promise<void> {
    const links = [...this.#links.values()];
    const look = (): boolean => {
      for (const link of links) link.advance();
      return links.every((link) => isOver(link) || link.error !== undefined);
    };
    const sent = {
      get isSettled(): boolean {
        return look();
      },
      describe: () => `What this ${this.#name} sent was not delivered`,
    };
    await this.#agent.until(sent, { timeoutMs: this.group.settings.graceMs }).catch(() => {});
  }

  async #register(): Promise<NetworkFacts> {
    for (const window of this.#windows) this.#registered.push(await this.#registerWindow(window));
    this.#mappings = this.#device.mappings;
    this.#memory = await this.#agent.register(new Uint8Array(this.#device.memory.buffer));
    return this.#facts();
  }

  /** All parts of the window, of which a rank of this host may be told for another. */
  #registerWindow(window: NetworkWindow): Promise<Registration> {
    const { address, bytes } = window.parts;
    return this.#agent.register(this.#device.hostView('u8', address, bytes));
  }

  #facts(): NetworkFacts {
    const regions = this.#registered.filter((window) => window !== undefined);
    const metadata = this.#agent.localMetadata({ regions });
    return {
      agent: this.#agent.name,
      metadata: Buffer.from(metadata).toString('base64'),
      regions: regions.map(({ number }) => number),
    };
  }

  /** Links to a peer, or takes note of what has changed of its windows. */
  async #connect(
    peer: number,
    { agent: name, metadata, regions }: NetworkFacts,
    { channels, wait, closed = 0, isAnew = false }: LinkWays,
  ): Promise<void> {
    await this.#shared.load(name, Buffer.from(metadata, 'base64'), regions);
    const memory = this.#memory as Registration;
    const backend = carrierAcrossHosts(this.#agent, name);
    const options = { ...wait, ...remaining(wait), ...(backend && { backend }) };
    const parts = await Promise.all(regions.map((region) => this.#agent.channelParts(name, memory, region, options)));
    const remotes = parts.map(({ remote }) => remote);
    const known = this.#links.get(peer);
    if (known !== undefined && !isAnew) return known.useWindows(remotes);
    const hasClosed = (): boolean => this.words.count(peer, networkCells.closed) !== closed;
    const link = await NetworkLink.open({ parts: parts[0]!, remotes, channels, hasClosed, ...this.#rows });
    this.#links.set(peer, link);
  }
}
