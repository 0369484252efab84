// How the blocks of a tensor are dealt out to slots and their lanes: block b belongs to lane b mod (slots * lanes).

export interface SlotShape {
  /** Elements of a block. */
  readonly blockSize: number;
  /** Blocks that one message of a slot carries at most. */
  readonly lanes: number;
  readonly slots: number;
}

/** Numbers of blocks and lanes fit 32 bits. */
const MAX_NUMBER = 2 ** 32 - 1;

/** From one block of a lane to its next one. */
export function strideOf({ lanes, slots }: SlotShape): number {
  return lanes * slots;
}

export function blocksOf({ blockSize }: SlotShape, count: number): number {
  return Math.ceil(count / blockSize);
}

/** Slots that a call on so many blocks uses, from 0 on. The first one always, so that the ranks agree on what they call. */
export function slotsInUse({ lanes, slots }: SlotShape, blocks: number): number {
  return Math.max(1, Math.min(slots, Math.ceil(blocks / lanes)));
}

/** Lanes of the slot that have blocks, from 0 on. */
export function lanesInUse({ lanes }: SlotShape, slot: number, blocks: number): number {
  return Math.max(0, Math.min(lanes, blocks - slot * lanes));
}

/** The first of the numbers that stand for no block; one for each lane, in their order, above those of all blocks. */
export function infinityOf(shape: SlotShape): number {
  const stride = strideOf(shape);
  return (Math.floor(MAX_NUMBER / stride) - 1) * stride;
}
