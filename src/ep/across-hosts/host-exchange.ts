// The network side of a collective object on a CPU rank: its memory, its links, and the meeting of ranks of all hosts.
import { callWord, describeCall, type Call } from '../../group/calls.ts';
import type { CountExchange, RecordPlace } from '../../group/exchange.ts';
import { agreeOn } from '../../group/agree.ts';
import { HostNetwork, privateWindow } from '../../group/network/host-network.ts';
import type { HostWay, ServedSource } from '../../group/network/host-routes.ts';
import { ChunkArrivals } from '../../group/network/peer-words.ts';
import { EXCHANGE_HEADER_WORDS } from '../../abi/exchange-record.ts';
import { networkCells } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import { rankList } from '../../world/membership.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import {
  chunkTokens,
  type NetworkRegion,
  type NetworkShape,
  type NetworkSize,
  networkSize,
  type SumRing,
} from './network-size.ts';

/** Numbers of the windows in HostNetwork. */
export const NETWORK_WINDOW = 0;
/** The object's own, with the exchange records. */
const CALL_WINDOW = 1;
/** The window where rows are received; it may be the same one. */
export const ROW_WINDOW = 2;

interface HostExchangeOptions extends CallWait {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly name: string;
  readonly shape: NetworkShape;
  /** The window with the exchange records, and that where rows are received. */
  readonly calls: SymmetricWindow;
  readonly rows: SymmetricWindow;
  /** Memory of this rank for the network side, of NetworkSize.bytes at least; made here if it is absent. */
  readonly memory?: Tensor<'u8'> | undefined;
}

export class HostExchange {
  readonly network: HostNetwork;
  /** Start of this rank's memory, in which `size` lays out the regions. */
  readonly address: number;
  readonly size: NetworkSize;
  readonly shape: NetworkShape;
  readonly tables: HostTables;
  readonly #group: RankGroup;
  readonly #parts: HostParts;
  /** Arrivals of call words, one for each slot. */
  readonly #calls: readonly ChunkArrivals[];
  #call = 0;

  /** Collective; fails alike on all ranks. */
  static async create(options: HostExchangeOptions): Promise<HostExchange> {
    const { group, device, name, shape, calls, rows } = options;
    const size = networkSize(shape);
    const prepare = (): HostParts => makeParts(options, size);
    const agreement = { what: `network side of ${name}`, config: { bytes: size.bytes }, prepare, release };
    const parts = await agreeOn(group, agreement, options);
    try {
      const { address } = parts.memory;
      const { cells, aborts } = size.regions;
      for (const { offset, bytes } of [cells, aborts]) device.hostView('u8', address + offset, bytes).fill(0);
      const network = await HostNetwork.create({
        ...options,
        barrier: calls.barrier,
        windows: [privateWindow({ address, bytes: size.bytes }), calls, rows],
        cells: cells.offset,
        aborts: aborts.offset,
        rows: { rows: shape.maxTokensPerRank, rowWindow: ROW_WINDOW },
      });
      return new HostExchange(options, { size, network, parts });
    } catch (error) {
      release(parts);
      throw error;
    }
  }

  private constructor(
    { group, shape }: HostExchangeOptions,
    { size, network, parts }: Pick<HostExchange, 'size' | 'network'> & { readonly parts: HostParts },
  ) {
    this.#group = group;
    this.shape = shape;
    this.size = size;
    this.network = network;
    this.address = parts.memory.address;
    this.tables = parts.tables;
    this.#parts = parts;
    this.#calls = this.served.map(({ rank }) => new ChunkArrivals(network.words, rank, networkCells.calls, 1));
  }

  get ways(): readonly HostWay[] {
    return this.network.routes.ways;
  }

  get served(): readonly ServedSource[] {
    return this.network.routes.served;
  }

  /** How many tokens go to each host. `isTokenInRank` u8 [tokens, ranks]. */
  countHosts(device: CpuDevice, isTokenInRank: Tensor<'u8'>, tokens: number): Int32Array {
    const { hostOf, perHost, lastToken } = this.tables;
    const hosts = perHost.shape[0]!;
    device.kernels.countHostTokens(
      isTokenInRank.address,
      tokens,
      this.#group.size,
      hostOf.address,
      hosts,
      perHost.address,
      lastToken.address,
    );
    return perHost.view();
  }

  /** Tokens whose rows one signal stands for, of a list that both sides have; alike on all ranks. */
  chunkTokens(rowBytes: number, tokens: number): number {
    return chunkTokens(rowBytes, tokens);
  }

  /** The same of sums. */
  get sumRing(): SumRing {
    return this.size.sumRing;
  }

  /** Address of a slot of a region of this rank's own window. */
  slotAddress(region: NetworkRegion, slot: number): number {
    return this.address + this.#slotOffset(region, slot);
  }

  /** Offset of a slot of a region of a peer's window, for puts. */
  slotAt(peer: number, region: NetworkRegion, slot: number): number {
    return this.network.offsetAt(peer, NETWORK_WINDOW, this.#slotOffset(region, slot));
  }

  /**
   * Tells the forwarders of this rank that it has begun the call, behind publish() or beginCall() of the exchange;
   * `withCounts`: the record has counts.
   */
  announce(exchange: CountExchange, call: Call, withCounts = false): void {
    this.#call = callWord(call, 'opening');
    const place = exchange.announce(this.#call);
    this.network.begin();
    const bytes = withCounts ? place.bytes : EXCHANGE_HEADER_WORDS * 4;
    for (const way of this.ways) this.#sendRecord(way, place, bytes);
    for (const calls of this.#calls) calls.begin();
    this.network.advance();
  }

  /** True when the served source of that slot has begun the same call. Fails with WL_CONFIG_MISMATCH if it is another one. */
  hasEntered(exchange: CountExchange, slot: number): boolean {
    const calls = this.#calls[slot] as ChunkArrivals;
    if (calls.taken === 1) return true;
    if (!calls.take()) return false;
    const { rank } = this.served[slot] as ServedSource;
    const other = exchange.announced(rank);
    if (other === this.#call) return true;
    const { ranks, worldRank } = this.#group;
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks are in different calls: ${describeCall(this.#call)} on rank ${worldRank}, ${describeCall(other)} on rank ${ranks[rank]} of another host`,
      { details: { rank: ranks[rank], call: this.#call, other } },
    );
  }

  /** Returns when all ranks that this one serves have begun the call. With a local barrier behind it, all ranks have. */
  async meet(exchange: CountExchange, wait: CallWait): Promise<void> {
    const missing = (): number[] =>
      this.served.flatMap(({ rank }, slot) => (this.#calls[slot]!.taken === 1 ? [] : [rank]));
    await this.network.until(
      {
        isDone: () => {
          let all = true;
          for (let slot = 0; slot < this.served.length; slot++) all = this.hasEntered(exchange, slot) && all;
          return all;
        },
        awaits: (peer) => missing().includes(peer),
        describe: () =>
          `Rank ${this.#group.worldRank} did not hear of ${describeCall(this.#call)} from ${rankList(missing().map((rank) => this.#group.ranks[rank]!))} of other hosts`,
      },
      wait,
    );
  }

  /** Returns when all that this rank has sent is delivered: its memory may change. */
  async settle(wait: CallWait): Promise<void> {
    const { network } = this;
    const awaits = (peer: number): boolean => !network.link(peer).isDelivered;
    await network.until(
      { isDone: () => network.isDelivered, awaits, describe: () => this.describeUndelivered() },
      wait,
    );
  }

  describeUndelivered(): string {
    const late = this.network.routes.peers
      .filter((peer) => !this.network.link(peer).isDelivered)
      .map((peer) => this.#group.ranks[peer]!);
    return `What rank ${this.#group.worldRank} sent to ${rankList(late)} was not delivered`;
  }

  async close(): Promise<void> {
    await this.network.close();
    release(this.#parts);
  }

  #slotOffset(region: NetworkRegion, slot: number): number {
    const { sumBytes, sumWeightBytes } = this.shape;
    const { sumTokens } = this.size.sumRing;
    const bytes = {
      cells: 0,
      aborts: 0,
      landed: this.size.slotBytes,
      packed: this.size.slotBytes,
      sums: sumTokens * sumBytes,
      hostRows: sumTokens * sumBytes,
      sumWeights: sumTokens * sumWeightBytes,
      hostWeights: sumTokens * sumWeightBytes,
    }[region];
    return this.size.regions[region].offset + slot * bytes;
  }

  #sendRecord({ forwarder }: HostWay, { offset }: RecordPlace, bytes: number): void {
    const { network } = this;
    const queue = network.link(forwarder).queues[0]!;
    queue.put(this.callAddress + offset, CALL_WINDOW, network.offsetAt(forwarder, CALL_WINDOW, offset), bytes);
    queue.signal(NETWORK_WINDOW, network.cellAt(forwarder, networkCells.calls));
  }

  /** Address of this rank's part of the window with the exchange records. */
  get callAddress(): number {
    return this.network.windowAddress(CALL_WINDOW);
  }
}

/** What a rank has besides its links. */
interface HostParts {
  readonly memory: Tensor<'u8'>;
  /** Whether the memory is this side's to give back. */
  readonly isOwn: boolean;
  readonly tables: HostTables;
}

/** Fails with WL_MEMORY, having taken nothing. */
function makeParts({ group, device, memory }: HostExchangeOptions, { bytes }: NetworkSize): HostParts {
  const tables = makeTables(group, device);
  try {
    return { memory: memory ?? device.empty('u8', [bytes]), isOwn: memory === undefined, tables };
  } catch (error) {
    tables[Symbol.dispose]();
    throw error;
  }
}

function release({ memory, isOwn, tables }: HostParts): void {
  if (isOwn) memory.close();
  tables[Symbol.dispose]();
}

type HostTables = ReturnType<typeof makeTables>;

/** Small tables for kernels. */
function makeTables(group: RankGroup, device: CpuDevice) {
  const { topology, size } = group;
  const others = topology.hosts.length - 1;
  const tables = TensorSet.together(device, (tensors) => ({
    /** Number of each rank's host. */
    hostOf: tensors.empty('i32', [size]),
    /** Position of each rank on the host of a way, -1 for ranks of others. */
    localIndex: Array.from({ length: others }, () => tensors.empty('i32', [size])),
    /** Tokens per host, and scratch. */
    perHost: tensors.empty('i32', [others + 1]),
    lastToken: tensors.empty('i32', [others + 1]),
    /** Numbers in the group of the ranks of this host. */
    localRanks: tensors.empty('i32', [topology.scaleUpRanks.length]),
  }));
  const ranks = group.ranks.map((_, rank) => rank);
  tables.hostOf.view().set(ranks.map((rank) => topology.hostOf(rank)));
  tables.localRanks.view().set(topology.scaleUpRanks);
  for (const [at, table] of tables.localIndex.entries()) {
    const host = (topology.hostIndex + 1 + at) % (others + 1);
    table.view().set(ranks.map((rank) => (topology.hostOf(rank) === host ? topology.scaleUpIndexOf(rank) : -1)));
  }
  return tables;
}
