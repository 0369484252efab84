// How the kernels that move rows are launched: warps, what each stages in shared memory, and what a block needs of it.
import { alignUp } from '../abi/layout.ts';

/** The kernels' mbarriers, before what they stage. */
export const BARRIER_BYTES = 1024;
/** More only get into each other's way: 8 to 16 warps are alike, 28 are slower. */
const MAX_STAGING_WARPS = 16;
/** Longer rows are staged in equal parts: a part's memory is free again sooner than a row's. */
const MAX_STAGE_BYTES = 8192;
/** More warps would leave each too small a chunk for the copy engine to be worth starting. */
const GATHER_WARPS = 7;
const GATHER_STAGES = 2;

export interface RowShape {
  /** Threads of a block. */
  readonly block: number;
  readonly sharedBytes: number;
  /** Bytes of a row that a warp has in hand at once. */
  readonly partBytes: number;
}

/** Each warp brings a row into memory of its own and stores it from there. `room`: shared memory beside the barriers. */
export function stagingShape(room: number, rowBytes: number): RowShape {
  // Rows that are no multiple of 16 bytes are not staged; the stage is then only not zero.
  const partBytes = alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / MAX_STAGE_BYTES)), 16);
  const warps = Math.max(1, Math.min(MAX_STAGING_WARPS, Math.floor(room / partBytes)));
  return { block: warps * 32, sharedBytes: BARRIER_BYTES + warps * partBytes, partBytes };
}

/** Each warp sums up to `slots` rows, in equal parts as large as fit: two stages of a part of each, and one to sum into. */
export function gatherShape(room: number, rowBytes: number, slots: number): RowShape {
  const parts = GATHER_STAGES * slots + 1;
  const most = Math.floor(room / GATHER_WARPS / parts / 128) * 128;
  const partBytes = alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / most)), 16);
  return { block: GATHER_WARPS * 32, sharedBytes: BARRIER_BYTES + GATHER_WARPS * parts * partBytes, partBytes };
}
