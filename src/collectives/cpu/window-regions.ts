// What a Communicator's window holds at each rank: its board, staging slots for collectives, channels to each rank.
import { defineLayout } from '../../abi/layout.ts';
import { networkCellsBytes } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';
import type { HostNetwork } from '../../group/network/host-network.ts';
import { hostRoutes, type Hosts, maxServed } from '../../group/network/host-routes.ts';
import type { NetworkLink } from '../../group/network/network-link.ts';
import type { OutQueue } from '../../group/network/out-queue.ts';
import { networkAbortsBytes } from '../../group/network/peer-words.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';
import { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';

// What ranks of one host share for collectives: who is how far, what each calls, who sleeps, and messages between pairs.

/**
 * Calls whose records a rank keeps, a power of two. It may be a good quarter as many calls ahead of another rank, which looks back
 * at half as many.
 */
export const CALL_RECORDS = 2048;
/** Words that different ranks write lie on different cache lines. */
const CACHE_LINE = 64;

/**
 * One per rank, in its part of the window. Only the rank itself writes to it, unless said otherwise.
 *
 * - `posted`: how many pieces of collective calls it has posted. Its store publishes what the rank staged before it, and
 *   says that the rank has taken all it needs of earlier pieces. Wraps; compared by signed difference.
 * - `bell`: the word that the rank sleeps on. Whoever changes what it waits for adds one, if it sleeps.
 * - `sleepers`: above zero while it sleeps or is about to.
 */
export const collectiveBoard = defineLayout(
  'CollectiveBoard',
  {
    posted: 'i32',
    postedLine: { of: 'i32', count: 15 },
    bell: 'i32',
    sleepers: 'i32',
    bellLine: { of: 'i32', count: 14 },
  },
  CACHE_LINE,
);

/**
 * What a rank calls: record `call % CALL_RECORDS` of its ring, written before its first post of that call. Beside it, at the
 * same place of a ring of words, stands its signature, which other ranks compare; they read the record to tell a difference.
 */
export const callRecord = defineLayout('CollectiveCallRecord', {
  call: 'i32',
  /** Kind in bits 0-7, dtype in bits 8-15, reduction in bits 16-23. */
  operation: 'i32',
  root: 'i32',
  count: 'u32',
});

/**
 * One per (sender, receiver), in the sender's part: pieces that it has sent to that receiver. Its counterpart `taken` is in
 * the receiver's part. Both wrap.
 */
export const pairCell = defineLayout('CollectivePairCell', { pieces: 'i32' }, CACHE_LINE);

/** The header before the bytes of a piece of a message. `messageBytes` and `dtype` are those of the whole message. */
export const pieceHeader = defineLayout(
  'CollectivePieceHeader',
  { messageBytes: 'u32', dtype: 'i32', bytes: 'u32' },
  CACHE_LINE,
);

/** Pieces of up to a quarter of a block: a rank may be so many of them ahead of the others, as a broadcast's root is. */
const SMALL_BLOCKS = 4;
const SMALL_BLOCK_BYTES = 65_536;
const SMALL_PIECES = CALL_RECORDS / 4 / SMALL_BLOCKS;
/** Two would do; with four, a rank that is late does not hold up the others at once. */
const LARGE_BLOCKS = 4;
/** Pieces of a message that may be under way between two ranks. */
const CHANNEL_SLOTS = 4;
const CHANNEL_BYTES = 1 << 20;
const MIN_CHANNEL_SLOT = 4096;
const MAX_CHANNEL_SLOT = 65_536;

export type CollectiveRegion = 'board' | 'signatures' | 'records' | 'sent' | 'taken' | 'small' | 'large' | 'channels';

/** Blocks that are used in turn, each for pieces that fit, up to so many. */
export interface RingShape {
  readonly blocks: number;
  readonly bytes: number;
  readonly maxPieces: number;
}

interface ChannelShape {
  readonly slots: number;
  /** Bytes of a piece; its header stands before it. */
  readonly bytes: number;
}

export interface CollectiveRegions extends RegionLayout<CollectiveRegion> {
  readonly small: RingShape;
  readonly large: RingShape;
  /** The channel from one rank to another. */
  readonly channel: ChannelShape;
}

/** Bytes of a rank's channels to all others, and most of a piece in them. */
interface ChannelBytes {
  readonly bytes: number;
  readonly mostOfSlot: number;
}

const usualChannels: ChannelBytes = { bytes: CHANNEL_BYTES, mostOfSlot: MAX_CHANNEL_SLOT };

/** `pieceBytes`: of a large block, a multiple of 64. */
export function collectiveRegions(ranks: number, pieceBytes: number, channels = usualChannels): CollectiveRegions {
  const small = { blocks: SMALL_BLOCKS, bytes: SMALL_BLOCK_BYTES, maxPieces: SMALL_PIECES };
  const large = { blocks: LARGE_BLOCKS, bytes: pieceBytes, maxPieces: 1 };
  const share = Math.floor(channels.bytes / (CHANNEL_SLOTS * Math.max(1, ranks - 1)) / 64) * 64;
  const channelSlot = Math.min(channels.mostOfSlot, Math.max(MIN_CHANNEL_SLOT, share));
  const channel = { slots: CHANNEL_SLOTS, bytes: channelSlot };
  const layout = layOutRegions<CollectiveRegion>({
    board: collectiveBoard.size,
    signatures: CALL_RECORDS * 4,
    records: CALL_RECORDS * callRecord.size,
    sent: ranks * pairCell.size,
    taken: ranks * pairCell.size,
    small: small.blocks * small.bytes,
    large: large.blocks * large.bytes,
    channels: ranks === 1 ? 0 : ranks * channel.slots * (pieceHeader.size + channel.bytes),
  });
  return { ...layout, small, large, channel };
}

type NetworkRegion = 'own' | 'cells' | 'aborts' | 'mirrors';

/**
 * The same of a group on several hosts. A rank's part then begins with its own regions. Behind them lie the cells and reasons
 * that ranks of other hosts write, and a mirror of the own regions of each rank there that this rank stands for here.
 */
export function regionsAcrossHosts(own: MirroredRegions, ranks: number, hosts: Hosts): RegionLayout<NetworkRegion> {
  return layOutRegions<NetworkRegion>({
    own: own.bytes,
    cells: networkCellsBytes(ranks),
    aborts: networkAbortsBytes(ranks),
    mirrors: maxServed(hosts) * own.bytes,
  });
}

// A rank's part of the window can be read on this host: its own, or the mirror of a rank of another host.

/** What a rank's part begins with, and what mirrors are of. */
export interface MirroredRegions {
  readonly bytes: number;
}

/** Parts of all ranks, by rank of the group. */
export interface RankParts {
  /** Ranks of the world. */
  readonly ranks: readonly number[];
  /** This rank. */
  readonly index: number;
  readonly addresses: readonly number[];
  /** All of the window. */
  readonly storage: MemoryRange;
}

/** Offset of a mirror in the part of the rank that has it. `slot`: of the mirrored rank among those that it stands for. */
function mirrorOffset(mirrors: number, slot: number, { bytes }: MirroredRegions): number {
  return mirrors + slot * bytes;
}

/** `mirrors`: offset of the mirrors in each part; unused on one host. */
export function rankParts(
  { rank: index, ranks, topology }: RankGroup,
  window: SymmetricWindow,
  { regions, mirrors }: { readonly regions: MirroredRegions; readonly mirrors: number },
): RankParts {
  const partOf = (rank: number): number => window.addresses[topology.scaleUpIndexOf(rank)]!;
  const { takers } = hostRoutes(topology.hosts, index);
  const addresses = ranks.map((_, rank) => {
    const taker = takers.get(rank);
    if (taker === undefined) return partOf(rank);
    return partOf(taker.forwarder) + mirrorOffset(mirrors, taker.slot, regions);
  });
  return { ranks, index, addresses, storage: window.storage };
}

// Keeps the mirrors of this rank's part on other hosts as they must be: what it writes there for others to read is put into
// them, and what it counts is counted in them, in the same order.

/** The way to another host. */
interface Way {
  /** Ranks of that host, ascending. */
  readonly ranks: readonly number[];
  readonly link: NetworkLink;
  readonly queue: OutQueue;
  /** Offset of the mirror in the window's mapping there. */
  readonly offset: number;
}

export class Mirrors {
  readonly ways: readonly Way[];
  readonly network: HostNetwork;
  /** The address of this rank's part. */
  readonly #address: number;
  readonly #wayOf: readonly (Way | undefined)[];
  /** Whether a rank of another host has closed its side. */
  readonly #hasClosed: (rank: number) => boolean;

  /** `mirrors`: offset of the mirrors in each rank's part. `hasClosed`: as this host has heard. */
  constructor(
    network: HostNetwork,
    {
      address,
      regions,
      mirrors,
      hasClosed,
    }: {
      readonly address: number;
      readonly regions: MirroredRegions;
      readonly mirrors: number;
      readonly hasClosed: (rank: number) => boolean;
    },
  ) {
    const { routes, group, channels } = network;
    this.network = network;
    this.#address = address;
    this.#hasClosed = (rank) => hasClosed(rank) || (routes.peers.includes(rank) && network.link(rank).isClosed);
    this.ways = routes.ways.map(({ forwarder, slot, ranks }, number) => ({
      ranks,
      link: network.link(forwarder),
      // One channel for each: counts must come behind what they count.
      queue: network.link(forwarder).queues[number % channels]!,
      offset: network.offsetAt(forwarder, 0, mirrorOffset(mirrors, slot, regions)),
    }));
    this.#wayOf = group.ranks.map((_, rank) => this.ways.find(({ ranks }) => ranks.includes(rank)));
  }

  /** True for ranks of other hosts. */
  has(rank: number): boolean {
    return this.#wayOf[rank] !== undefined;
  }

  /** Hot path, as all below. Bytes of this rank's part, for the ranks of one host. They must not change until those have read them. */
  put({ queue, offset }: Way, at: number, bytes: number): void {
    queue.put(this.#address + at, 0, offset + at, bytes);
  }

  /** The same, for all hosts. */
  putToAll(at: number, bytes: number): void {
    for (const way of this.ways) this.put(way, at, bytes);
  }

  /** The same, for the host of a rank; nothing if that is this host. */
  putTo(rank: number, at: number, bytes: number): void {
    const way = this.#wayOf[rank];
    if (way !== undefined) this.put(way, at, bytes);
  }

  /** One has been added to the word at the beginning of a 64-bit cell: so it is on the other hosts. */
  countAtAll(at: number): void {
    for (const { queue, offset } of this.ways) queue.signal(0, offset + at);
  }

  /** The same, on the host of a rank. */
  countAt(rank: number, at: number): void {
    const way = this.#wayOf[rank];
    way?.queue.signal(0, way.offset + at);
  }

  /** Takes in what has come, posts what there is room for. */
  advance(): void {
    this.network.advance();
  }

  /** Everything was handed to the carrier, which needs no further call for it. */
  get isPosted(): boolean {
    for (const way of this.ways) if (!this.#isPosted(way)) return false;
    return true;
  }

  /** Ranks to whose hosts something waits to be posted, and which may need it. */
  unposted(): number[] {
    return this.ways.flatMap((way) => (this.#isPosted(way) ? [] : way.ranks.filter((rank) => !this.#hasClosed(rank))));
  }

  /** The rank that takes it in may have closed its side: others of its host may still need it, until they have too. */
  #isPosted({ link, queue, ranks }: Way): boolean {
    return queue.isPosted || link.isGone || ranks.every(this.#hasClosed);
  }
}

// The windows of the ranks of a collective object on CPUs, with their links to ranks of other hosts.

/** Links of a group on several hosts, and offsets of their parts of the windows. */
interface AcrossHosts {
  readonly network: HostNetwork;
  readonly cells: number;
  readonly aborts: number;
  readonly mirrors: number;
}

export interface MirroredWindow {
  readonly window: SymmetricWindow;
  readonly across?: AcrossHosts | undefined;
}

interface MirroredWindowOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** The object, for errors. */
  readonly what: string;
  /** The name of the windows' file. */
  readonly name: string;
  readonly regions: ReturnType<typeof regionsAcrossHosts>;
}

/** Collective, after the ranks have agreed on the regions. Fails alike on all ranks. */
export async function createMirroredWindow(
  { group, device, what, name, regions: { bytes, regions } }: MirroredWindowOptions,
  wait: CallWait,
): Promise<MirroredWindow> {
  // No barrier of the window is used: the calls have their own words.
  const describeCall = (): string => what;
  const window = await SymmetricWindow.create({ ...wait, group, device, name, bytes, describeCall });
  if (group.topology.hosts.length === 1) return { window };
  const offsets = {
    cells: regions.cells.offset,
    aborts: regions.aborts.offset,
    mirrors: regions.mirrors.offset,
  };
  // Nothing goes as rows.
  const rows = { rows: 1, rowWindow: 0 };
  try {
    const of = { group, device, name: what, barrier: window.barrier, windows: [window] };
    const endsWith = { untilSourcesLeft: true };
    // Loaded here, so that ranks of one host never load what links to others need.
    const { HostNetwork: Network } = await import('../../group/network/host-network.ts');
    return {
      window,
      across: { network: await Network.create({ ...wait, ...of, ...offsets, rows, endsWith }), ...offsets },
    };
  } catch (error) {
    window[Symbol.dispose]();
    throw error;
  }
}
