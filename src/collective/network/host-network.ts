// The way of a collective object to the group's ranks on other hosts: an agent, windows registered with it, channels to
// each peer, and cells in which signals of peers are counted.
import { Agent } from '../../agent/agent.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { Registration } from '../../agent/registration.ts';
import { MAX_NETWORK_CHANNELS, networkCellOffset, networkCells } from '../../abi/network-cells.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import { engineCount } from '../../transport/host/open-engines.ts';
import { type HostRoutes, hostRoutes } from './host-routes.ts';
import { NetworkLink } from './network-link.ts';

export interface HostNetworkOptions extends CallWait {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** Of the object, for names and errors. */
  readonly name: string;
  /** What peers write to, the mapping of this host's ranks each; the first one has the cells. */
  readonly windows: readonly SymmetricWindow[];
  /** Of the cells in the first window. */
  readonly cells: number;
  /** Most rows that one call sends to a peer, and the number of the window that they go to. */
  readonly rows: { readonly rows: number; readonly rowWindow: number };
}

/** What is waited for across hosts. */
export interface NetworkWait {
  /** Asked after each look at the network; does the work that has become possible. */
  isDone(): boolean;
  /** True if something of this peer is missing. One that has closed its side sends nothing more. */
  awaits(peer: number): boolean;
  /** For the error of a wait that takes too long, as the begin of a sentence. */
  describe(): string;
}

interface Told {
  readonly metadata: string;
  readonly channels: number;
  readonly regions: readonly number[];
}

/** Names of agents tell objects of one process apart. */
let created = 0;

export class HostNetwork {
  readonly routes: HostRoutes;
  readonly group: RankGroup;
  /** To each peer: as many as the rank with the fewest engines has, the same on all ranks. */
  channels = 1;
  readonly #agent: Agent;
  readonly #name: string;
  readonly #device: CpuDevice;
  readonly #windows: SymmetricWindow[];
  readonly #cells: number;
  readonly #rows: HostNetworkOptions['rows'];
  /** Low words of all cells. */
  readonly #counts: Int32Array;
  readonly #links = new Map<number, NetworkLink>();
  readonly #registered: (Registration | undefined)[] = [];
  #memory: Registration | undefined;
  #hasGivenUp = false;

  /** Collective over a group on several hosts. Fails alike on all ranks. */
  static async create(options: HostNetworkOptions): Promise<HostNetwork> {
    const { group, name } = options;
    const made: { agent?: Agent; network?: HostNetwork } = {};
    const open = async (): Promise<Told> => {
      const agentName = `${name}-${created++}-rank-${group.worldRank}`;
      made.agent = await Agent.create(agentName, { settings: group.settings });
      made.network = new HostNetwork(options, made.agent);
      return made.network.#register();
    };
    try {
      const told = await shareOutcome(group, { name: `network/${name}`, facts: 0, work: open }, options);
      if (told.failure !== undefined) throw told.failure;
      const { network } = made as { network: HostNetwork };
      const connect = (): Promise<void> => network.#connect(told.values as readonly Told[], options);
      const { failure } = await shareOutcome(
        group,
        { name: `network/${name}/links`, facts: 0, work: connect },
        options,
      );
      if (failure !== undefined) throw failure;
      return network;
    } catch (error) {
      await made.agent?.close();
      throw error;
    }
  }

  private constructor({ group, device, name, windows, cells, rows }: HostNetworkOptions, agent: Agent) {
    this.#rows = rows;
    this.group = group;
    this.routes = hostRoutes(group.topology.hosts, group.rank);
    this.#agent = agent;
    this.#name = name;
    this.#device = device;
    this.#windows = [...windows];
    this.#cells = cells;
    const own = windows[0]!.address + cells;
    this.#counts = device.hostView('i32', own, networkCellOffset(group.size, 0) / 4);
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

  /** How often a peer has signalled a cell; wraps at 2^32. */
  count(peer: number, cell: number): number {
    return Atomics.load(this.#counts, networkCellOffset(peer, cell) / 4);
  }

  /** In the first window's mapping at `peer`: the line that this rank adds to, a cell of it. */
  cellAt(peer: number, cell: number): number {
    return this.offsetAt(peer, 0, this.#cells + networkCellOffset(this.group.rank, cell));
  }

  /** Offset, in the mapping of a window at `peer`'s host, of a place in the part of `peer`. */
  offsetAt(peer: number, window: number, offset: number): number {
    return this.#windows[window]!.offsetOf(this.group.topology.scaleUpIndexOf(peer)) + offset;
  }

  /** Of this rank's part of a window. */
  windowAddress(window: number): number {
    return this.#windows[window]!.address;
  }

  /** True if what lies below `end` in this device's memory can be put from. */
  hasMemory(end: number): boolean {
    return this.#memory !== undefined && end <= this.#memory.length;
  }

  /** Makes all of this device's memory a place to put from, after it has grown. Nothing may be under way: settle before. */
  async useMemory(): Promise<void> {
    const before = this.#memory;
    this.#memory = await this.#agent.register(new Uint8Array(this.#device.memory.buffer));
    for (const link of this.#links.values()) await link.useMemory(this.#memory);
    if (before !== undefined) await this.#agent.deregister(before);
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
      if (!done) this.#throwIfBroken(what);
      return done;
    };
    if (look()) return;
    const awaited = {
      get isSettled(): boolean {
        return look();
      },
      describe: () => what.describe(),
    };
    await this.#agent.until(awaited, remaining(wait));
  }

  #throwIfBroken(what: NetworkWait): void {
    this.#windows[0]!.barrier.throwIfUnusable();
    const { peerLost, ranks } = this.group;
    if (peerLost.aborted) throw peerLost.reason;
    for (const [peer, link] of this.#links) {
      if (this.count(peer, networkCells.abort) !== 0) {
        const text = `Rank ${ranks[peer]}, on another host, gave up a call of this ${this.#name}`;
        throw new WeftlineError('WL_PEER_FAILED', text, { details: { peer: ranks[peer] }, rank: ranks[peer]! });
      }
      const { error } = link;
      if (error === undefined) continue;
      if (!link.isClosed) {
        const text = `Rank ${ranks[peer]}, on another host, is out of reach: ${error.message}`;
        throw new WeftlineError(error.code, text, { details: error.details, rank: ranks[peer]!, cause: error });
      }
      // ORDER: what it sent before it closed has come by now, and is looked at once more.
      if (!what.awaits(peer) || what.isDone()) continue;
      throw new WeftlineError(
        'WL_PEER_LOST',
        `${what.describe()}: rank ${ranks[peer]} closed its ${this.#name} while other ranks were in a call`,
        { details: { peer: ranks[peer] }, rank: ranks[peer]!, cause: error },
      );
    }
  }

  /** Tells the peers that this rank has given up, so that they need not wait for their deadline. Never throws. */
  giveUp(): void {
    if (this.#hasGivenUp) return;
    this.#hasGivenUp = true;
    for (const [peer, link] of this.#links) link.giveUp(this.cellAt(peer, networkCells.abort));
  }

  /** A window is about to go: once it has resolved, no peer writes to it. Nothing may be under way. */
  async releaseWindow(number: number): Promise<void> {
    const before = this.#registered[number];
    this.#registered[number] = undefined;
    if (before !== undefined) await this.#agent.deregister(before);
  }

  /**
   * Collective: a window that was released has a successor.
   * @param number Which one of the options' windows.
   * @param window The new one, of the same ranks.
   * @param wait Of the call.
   */
  async replaceWindow(number: number, window: SymmetricWindow, wait: CallWait): Promise<void> {
    this.#windows[number] = window;
    const work = async (): Promise<Told> => {
      this.#registered[number] = await this.#registerWindow(window);
      return this.#told();
    };
    const told = await shareOutcome(this.group, { name: `network/${this.#name}/window`, facts: 0, work }, wait);
    if (told.failure !== undefined) throw told.failure;
    const connect = (): Promise<void> => this.#connect(told.values as readonly Told[], wait);
    const { failure } = await shareOutcome(
      this.group,
      { name: `network/${this.#name}/regions`, facts: 0, work: connect },
      wait,
    );
    if (failure !== undefined) throw failure;
  }

  close(): Promise<void> {
    return this.#agent.close();
  }

  async #register(): Promise<Told> {
    for (const window of this.#windows) this.#registered.push(await this.#registerWindow(window));
    this.#memory = await this.#agent.register(new Uint8Array(this.#device.memory.buffer));
    return this.#told();
  }

  /** All parts of the window, which one rank of this host writes for another. */
  #registerWindow(window: SymmetricWindow): Promise<Registration> {
    const { address, bytes } = window.parts;
    return this.#agent.register(this.#device.hostView('u8', address, bytes));
  }

  #told(): Told {
    const regions = this.#registered.filter((window) => window !== undefined);
    const metadata = this.#agent.localMetadata({ regions });
    return {
      metadata: Buffer.from(metadata).toString('base64'),
      channels: Math.min(MAX_NETWORK_CHANNELS, engineCount(this.#agent.settings)),
      regions: regions.map(({ number }) => number),
    };
  }

  /** Links to all peers, or what has changed of their windows. */
  async #connect(told: readonly Told[], wait: CallWait): Promise<void> {
    this.channels = Math.min(...told.map(({ channels }) => channels));
    await Promise.all(this.routes.peers.map((peer) => this.#connectPeer(peer, told[peer]!, wait)));
  }

  async #connectPeer(peer: number, { metadata, regions }: Told, wait: CallWait): Promise<void> {
    const name = await this.#agent.loadRemoteMetadata(Buffer.from(metadata, 'base64'));
    const memory = this.#memory as Registration;
    const backend = this.#carrierTo(name);
    const options = { ...wait, ...remaining(wait), ...(backend && { backend }) };
    const parts = await Promise.all(regions.map((region) => this.#agent.channelParts(name, memory, region, options)));
    const remotes = parts.map(({ remote }) => remote);
    const known = this.#links.get(peer);
    if (known !== undefined) return known.useWindows(remotes);
    const { channels } = this;
    const link = await NetworkLink.open({ parts: parts[0]!, remotes, channels, ...this.#rows });
    this.#links.set(peer, link);
  }

  /**
   * Hosts of a group may be containers of one machine, whose processes can copy into each other. They share no memory
   * all the same, which signals within a machine need: then the next backend carries. Undefined: the agent's choice.
   */
  #carrierTo(peer: string): BackendName | undefined {
    const usable = this.#agent.explain(peer).filter(({ isUsable }) => isUsable);
    return usable[0]?.backend === 'local' ? usable[1]?.backend : undefined;
  }
}
