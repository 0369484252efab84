// What two staging threads know of each other's memory: names of regions, the head of a ring, and the head of each piece.
import { defineLayout } from '../../abi/layout.ts';

/** Begins the description of a staged region, which no description of host memory does with this length. */
export const STAGED_REGION_MAGIC = 0x5354_4731;
/** Goes up with every change of this file and of what staging threads tell each other; a reader refuses other versions. */
export const STAGING_VERSION = 2;

/** The description of a region in metadata; behind it stands how the owner's staging thread is reached. */
export const stagedRegionInfo = defineLayout('StagedRegionInfo', {
  magic: 'u32',
  number: 'u32',
  key: 'u64',
  connectionBytes: 'u32',
  version: 'u32',
});

/** Most pieces of a link that are under way. */
export const MAX_STAGING_SLOTS = 64;

/** Most channels that the pieces of a ring take in turn: a transport has no more engines. */
export const MAX_STAGING_CHANNELS = 16;
/** Each in a cache line of its own, in numbers of 64 bits: different engines add to them. */
const COUNTER_STRIDE = 8;

/**
 * At the begin of a ring. Slot n belongs to channel n modulo their number; pieces of a channel take its slots in turn.
 * Channels overtake each other, so that each has a counter. At the receiver of pieces they are how many have arrived: the
 * sender adds to them by signals, behind the bytes. At the sender they are how many came back, and `status` says by slot why
 * a piece was refused; the receiver writes it before its signal. `status` of the receiver is where it sends that from.
 */
export const stagingRingHead = defineLayout(
  'StagingRingHead',
  {
    counters: { of: 'u64', count: MAX_STAGING_CHANNELS * COUNTER_STRIDE },
    status: { of: 'u64', count: MAX_STAGING_SLOTS },
  },
  4096,
);

/** The place of a channel's counter in the ring. */
export function stagingCounterOffset(channel: number): number {
  return stagingRingHead.offset.counters + channel * COUNTER_STRIDE * 8;
}

/** `nothing`: the sender gave the piece up. */
export const pieceKinds = { nothing: 0, write: 1, read: 2, signal: 3 } as const;

/** Why a piece was refused. */
export const pieceStatuses = { good: 0, unauthorized: 1, failed: 2 } as const;

/**
 * Begins a slot. All fragments lie in one region of the receiver; where the bytes begin follows from their number (`dataOffsetOf`).
 * A signal adds `add` to the cell at `offset`, which then holds `sum` if `hasSum` is 1: it may be written instead. Behind
 * its head stand words, by channel: how many pieces of that channel come before it. They wrap.
 */
export const pieceHead = defineLayout(
  'StagedPieceHead',
  {
    kind: 'u32',
    region: 'u32',
    key: 'u64',
    fragments: 'u32',
    offset: 'u64',
    add: 'u64',
    sum: 'u64',
    hasSum: 'u32',
  },
  64,
);

/** One fragment behind the head, which says how many there are. `slotOffset` counts from the first of the bytes. */
export const pieceFragment = defineLayout('StagedFragment', { remoteOffset: 'u64', bytes: 'u32', slotOffset: 'u32' });

export const MAX_PIECE_FRAGMENTS = 2048;
