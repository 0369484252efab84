// What a Communicator's window holds at each rank: its board, staging slots for collectives, channels to each rank.
import { CALL_RECORDS, callRecord, collectiveBoard, pairCell, pieceHeader } from '../../abi/collective-window.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';

/** Messages that a rank may be ahead of the others without waiting, as a broadcast's root is. */
const SMALL_SLOTS = 64;
/** Bytes that a rank contributes by a small slot. */
export const SMALL_SLOT_BYTES = 8192;
/** Two would do; with four a rank that is late does not hold up the others at once. */
const LARGE_SLOTS = 4;
/** Pieces of a message that may be under way between two ranks. */
export const CHANNEL_SLOTS = 4;
const CHANNEL_BYTES = 1 << 20;
const MIN_CHANNEL_SLOT = 4096;
const MAX_CHANNEL_SLOT = 65_536;

export type CollectiveRegion = 'board' | 'records' | 'sent' | 'taken' | 'small' | 'large' | 'channels';

export interface SlotShape {
  readonly count: number;
  readonly bytes: number;
}

export interface CollectiveRegions extends RegionLayout<CollectiveRegion> {
  readonly small: SlotShape;
  readonly large: SlotShape;
  /** Of one channel; before the bytes of each slot stands its header. */
  readonly channel: SlotShape;
}

/** `pieceBytes`: of a large slot, a multiple of 64. */
export function collectiveRegions(ranks: number, pieceBytes: number): CollectiveRegions {
  const small = { count: SMALL_SLOTS, bytes: SMALL_SLOT_BYTES };
  const large = { count: LARGE_SLOTS, bytes: pieceBytes };
  const share = Math.floor(CHANNEL_BYTES / (CHANNEL_SLOTS * Math.max(1, ranks - 1)) / 64) * 64;
  const channelSlot = Math.min(MAX_CHANNEL_SLOT, Math.max(MIN_CHANNEL_SLOT, share));
  const channel = { count: CHANNEL_SLOTS, bytes: channelSlot };
  const layout = layOutRegions<CollectiveRegion>({
    board: collectiveBoard.size,
    records: CALL_RECORDS * callRecord.size,
    sent: ranks * pairCell.size,
    taken: ranks * pairCell.size,
    small: small.count * small.bytes,
    large: large.count * large.bytes,
    channels: ranks === 1 ? 0 : ranks * channel.count * (pieceHeader.size + channel.bytes),
  });
  return { ...layout, small, large, channel };
}
