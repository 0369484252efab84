// What a Communicator's window holds at each rank: its board, staging slots for collectives, channels to each rank.
import { defineLayout } from '../../abi/layout.ts';
import { NETWORK_ABORT_BYTES, networkCellsBytes } from '../../abi/network.ts';
import { type Hosts, maxServed } from '../../group/network/host-routes.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';
import type { MirroredRegions } from './rank-parts.ts';

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

/** Before the bytes of a piece of a message. `messageBytes` and `dtype` are those of the whole message. */
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
  /** Of a piece; before it stands its header. */
  readonly bytes: number;
}

export interface CollectiveRegions extends RegionLayout<CollectiveRegion> {
  readonly small: RingShape;
  readonly large: RingShape;
  /** From one rank to another. */
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
    aborts: ranks * NETWORK_ABORT_BYTES,
    mirrors: maxServed(hosts) * own.bytes,
  });
}
