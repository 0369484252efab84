// How elastic ranks of different hosts agree on who takes part. Each host has words of all ranks, which its ranks change as on one
// host; each rank tells its peers what its host knows, and of two words the later one holds on all hosts. A rank takes part only
// when it and all that do have linked to each other. The calls advance this, in every wait.
import { networkCells } from '../../../abi/network.ts';
import { Deadline } from '../../../core/deadline.ts';
import { asWeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { HostNetwork, NetworkFacts } from '../../../group/network/host-network.ts';
import type { WindowRegion } from '../../../windows/region-layout.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { toldMember } from './low-latency-cells.ts';
import type { LowLatencyMembers } from './low-latency-members.ts';

/** How a rank of a certain life is found, as the store has it. */
export interface RankFacts {
  readonly life: number;
  readonly network: NetworkFacts;
}

interface ExchangeParts {
  readonly device: CpuDevice;
  readonly window: SymmetricWindow;
  readonly network: HostNetwork;
  readonly members: LowLatencyMembers;
  readonly regions: Readonly<Record<'toldMembers' | 'heardMembers', WindowRegion & { readonly stride: number }>>;
  /** How often this rank has offered itself, from 1. */
  readonly life: number;
  /** What that rank says in the store; fails if it says nothing. */
  readonly factsOf: (rank: number) => Promise<RankFacts>;
  /** Number of the last dispatch that was begun here. */
  readonly dispatch: () => number;
  /** Linked to that rank: what it has counted here so far is of the past. */
  readonly onLinked: (rank: number) => void;
}

/** A rank of another host. */
interface Peer {
  readonly rank: number;
  /** Begin of what it has told, among the words. */
  readonly heardAt: number;
  /** Offset in this rank's part of its window where this rank tells it. */
  readonly tellsAt: number;
  /** How often it had told, as of the last look. */
  heard: number;
  /** The epoch of what it was told last; -1 for none. */
  told: number;
  /** Its life when this rank linked to it last, in whichever life of its own. */
  met: number;
  isLinking: boolean;
  /** Attempts that failed since this rank has offered itself. */
  failures: number;
  retryAt: number;
}

/** How long linking to a peer may take, and how long to wait behind a failure. */
const LINK_MS = 10_000;
const RETRY_MS = 100;
const MOST_PAUSES = 20;

export class MemberExchange {
  readonly #parts: ExchangeParts;
  readonly #words: Int32Array;
  readonly #peers: readonly Peer[];
  readonly #size: number;
  /** Begin of what each rank tells that can be read here: of this host's ranks, and what was heard of the others. */
  readonly #tables: Int32Array;
  readonly #own: number;
  readonly #ownAddress: number;
  /** Changes with everything that peers do not know yet. */
  #version = 0;
  #epoch = -1;

  constructor(parts: ExchangeParts) {
    const { device, window, network, regions } = parts;
    const { group, routes } = network;
    const { topology } = group;
    this.#parts = parts;
    this.#size = group.size;
    this.#words = device.hostView('i32', window.storage.address, window.storage.bytes / 4);
    const wordAt = (address: number): number => (address - window.storage.address) / 4;
    this.#ownAddress = window.address + regions.toldMembers.offset;
    this.#own = wordAt(this.#ownAddress);
    const heardAt = (slot: number): number => regions.heardMembers.offset + slot * regions.heardMembers.stride;
    this.#peers = routes.ways.map(({ forwarder: rank, slot }) => ({
      rank,
      heardAt: wordAt(window.address + heardAt(routes.takers.get(rank)!.slot)),
      tellsAt: heardAt(slot),
      heard: 0,
      told: -1,
      met: 0,
      isLinking: false,
      failures: 0,
      retryAt: 0,
    }));
    this.#tables = Int32Array.from({ length: group.size }, (_, rank) => {
      const peer = this.#peers.find((one) => one.rank === rank);
      const there = topology.scaleUpIndexOf(rank);
      return peer?.heardAt ?? wordAt(window.addresses[there]! + regions.toldMembers.offset);
    });
    this.#words.fill(0, this.#own, this.#own + toldMember.arrays + 3 * this.#size);
    this.#words[this.#own + toldMember.life] = parts.life;
  }

  get life(): number {
    return this.#words[this.#own + toldMember.life]!;
  }

  /** All ranks have made the object together, and linked to each other. */
  beginTogether(): void {
    for (const peer of this.#peers) {
      peer.met = this.life;
      this.#setLinked(peer.rank, this.life);
    }
  }

  /** The memory of peers' words was another process's, or this rank begins its next life. */
  beginLife(life: number, isNewProcess: boolean): void {
    this.#words[this.#own + toldMember.life] = life;
    for (const peer of this.#peers) {
      if (isNewProcess) this.#words.fill(0, peer.heardAt, peer.heardAt + toldMember.arrays + 3 * this.#size);
      this.#setLinked(peer.rank, 0);
      peer.failures = 0;
      if (isNewProcess || !this.#parts.network.isLinked(peer.rank)) this.#link(peer);
    }
    this.#version += 1;
  }

  /** True while a link is being made, for which the event loop has to turn. */
  get isLinking(): boolean {
    for (const { isLinking } of this.#peers) if (isLinking) return true;
    return false;
  }

  /** The last dispatch of any rank, as far as was heard. */
  get lastDispatch(): number {
    let last = 0;
    for (const table of this.#tables) {
      const high = this.#words[table + toldMember.dispatchHigh]!;
      last = Math.max(last, high * 2 ** 32 + (this.#words[table + toldMember.dispatch]! >>> 0));
    }
    return last;
  }

  /** Whether each rank that may take part with that one has been looked for and was not found, or has linked to it. */
  get hasLookedEverywhere(): boolean {
    return this.#peers.every(({ rank, failures }) => failures > 1 || this.isLinkedTo(rank));
  }

  /** Hot path. Takes in what others say, and tells them what they do not know. */
  advance(): void {
    const { network, members } = this.#parts;
    for (const peer of this.#peers) {
      const heard = network.words.count(peer.rank, networkCells.members);
      if (heard === peer.heard) continue;
      peer.heard = heard;
      this.#hear(peer);
    }
    const { epoch } = members;
    if (epoch !== this.#epoch) {
      this.#epoch = epoch;
      this.#version += 1;
    }
    for (const peer of this.#peers) {
      if (peer.told === this.#version || !network.isLinked(peer.rank)) continue;
      this.#tell(peer);
    }
  }

  /** Looks again for peers to which linking has failed. To be called now and then. */
  retry(): void {
    for (const peer of this.#peers) if (this.#wants(peer)) this.#link(peer);
  }

  /** Whether that rank, and all that take part, have linked to each other. */
  isMapped(rank: number): boolean {
    const { members } = this.#parts;
    for (let other = 0; other < this.#size; other++) {
      if (other === rank || !members.isAdmitted(other) || !this.#areApart(rank, other)) continue;
      if (!this.#hasLinked(rank, other) || !this.#hasLinked(other, rank)) return false;
    }
    return true;
  }

  /** Whether this rank and that one, of another host, have linked to each other as they live now. */
  isLinkedTo(rank: number): boolean {
    const { rank: me } = this.#parts.network.group;
    return this.#hasLinked(me, rank) && this.#hasLinked(rank, me);
  }

  /** Asks the host that decides to admit the rank as it lives now. */
  wish(rank: number): void {
    const at = this.#wishOf(this.#own, rank);
    const life = this.#lifeOf(rank);
    if (this.#words[at] === life) return;
    this.#words[at] = life;
    this.#version += 1;
  }

  /** Whether any rank wishes that. */
  isWished(rank: number): boolean {
    const life = this.#lifeOf(rank);
    return life !== 0 && this.#tables.some((table) => this.#words[this.#wishOf(table, rank)] === life);
  }

  #hear(peer: Peer): void {
    const { members, network } = this.#parts;
    const words = peer.heardAt + toldMember.arrays;
    for (let rank = 0; rank < this.#size; rank++) members.hear(rank, this.#words[words + rank]!);
    if (this.#isSettled(peer)) return;
    if (network.isLinked(peer.rank)) this.#settle(peer);
    if (!this.#isSettled(peer)) this.#link(peer);
  }

  #tell(peer: Peer): void {
    const { network, members, dispatch } = this.#parts;
    const words = this.#own + toldMember.arrays;
    for (let rank = 0; rank < this.#size; rank++) this.#words[words + rank] = members.wordOf(rank);
    this.#words[this.#own + toldMember.dispatch] = dispatch() | 0;
    this.#words[this.#own + toldMember.dispatchHigh] = Math.floor(dispatch() / 2 ** 32);
    peer.told = this.#version;
    const queue = network.link(peer.rank).queues[0]!;
    const bytes = (toldMember.arrays + 3 * this.#size) * 4;
    queue.put(this.#ownAddress, 0, network.offsetAt(peer.rank, 0, peer.tellsAt), bytes);
    queue.signal(0, network.cellAt(peer.rank, networkCells.members));
  }

  /** A peer that has been heard of in a life that this rank does not know, or any, while this rank is not active itself. */
  #wants(peer: Peer): boolean {
    const { members, network, dispatch } = this.#parts;
    if (this.#isSettled(peer)) return false;
    return this.#lifeOf(peer.rank) !== 0 || !members.isActive(network.group.rank, dispatch());
  }

  /** Links to the peer as it lives now. */
  #link(peer: Peer): void {
    if (peer.isLinking || performance.now() < peer.retryAt) return;
    peer.isLinking = true;
    this.#linkTo(peer)
      .catch((error: unknown) => {
        peer.failures += 1;
        log(
          'world',
          'info',
          `rank ${this.#parts.network.group.ranks[peer.rank]} cannot be reached: ${asWeftlineError(error).message}`,
        );
      })
      .finally(() => {
        peer.isLinking = false;
        peer.retryAt = performance.now() + RETRY_MS * Math.min(1 + peer.failures, MOST_PAUSES);
      });
  }

  async #linkTo(peer: Peer): Promise<void> {
    const { network, factsOf } = this.#parts;
    const facts = await factsOf(peer.rank);
    await network.relink(peer.rank, facts.network, { deadline: new Deadline(LINK_MS) });
    // It hears of this rank, which then hears of it.
    peer.told = -1;
    if (this.#lifeOf(peer.rank) === facts.life && !this.#isSettled(peer)) this.#settle(peer);
  }

  #isSettled(peer: Peer): boolean {
    const life = this.#lifeOf(peer.rank);
    return life !== 0 && this.#linkedBy(this.#own, peer.rank) === life;
  }

  /**
   * From now on what the peer counts is of this life of both, once that is sure: a peer in a life that this rank has not met before
   * sends nothing yet, and one that has linked to this life of this rank has sent all of an earlier one.
   */
  #settle(peer: Peer): void {
    const life = this.#lifeOf(peer.rank);
    const { rank: me } = this.#parts.network.group;
    if (life === peer.met && this.#linkedBy(peer.heardAt, me) !== this.life) return;
    peer.met = life;
    this.#parts.onLinked(peer.rank);
    this.#setLinked(peer.rank, life);
  }

  #setLinked(rank: number, life: number): void {
    this.#words[this.#own + toldMember.arrays + this.#size + rank] = life;
    this.#version += 1;
  }

  #linkedBy(table: number, rank: number): number {
    return this.#words[table + toldMember.arrays + this.#size + rank]!;
  }

  #wishOf(table: number, rank: number): number {
    return table + toldMember.arrays + 2 * this.#size + rank;
  }

  #lifeOf(rank: number): number {
    return this.#words[this.#tables[rank]! + toldMember.life]!;
  }

  #hasLinked(rank: number, other: number): boolean {
    const life = this.#lifeOf(other);
    return life !== 0 && this.#linkedBy(this.#tables[rank]!, other) === life;
  }

  #areApart(rank: number, other: number): boolean {
    const { topology } = this.#parts.network.group;
    return topology.hostOf(rank) !== topology.hostOf(other);
  }
}
