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
  /** Most bytes of a row that a warp has in hand at once. */
  readonly partBytes: number;
}

/** Each warp brings a row into memory of its own and stores it from there. `room`: shared memory beside the barriers. */
export function stagingShape(room: number, rowBytes: number): RowShape {
  // Rows that are no multiple of 16 bytes are not staged; the stage is then only not zero.
  const partBytes = alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / MAX_STAGE_BYTES)), 16);
  const warps = Math.max(1, Math.min(MAX_STAGING_WARPS, Math.floor(room / partBytes)));
  return { block: warps * 32, sharedBytes: BARRIER_BYTES + warps * partBytes, partBytes };
}

export interface GatherShape extends RowShape {
  /** Bytes for the parts of all rows of a sum. */
  readonly stageBytes: number;
}

export interface GatherRows {
  /** Rows of most sums: parts are as large as they allow. */
  readonly usual: number;
  /** So many share a stage in smaller parts. */
  readonly most: number;
  /** Of a block; GATHER_WARPS by default. */
  readonly warps?: number;
}

/** Each warp sums rows part by part: two stages for the parts of all rows, and room for one part of the sum. */
export function gatherShape(room: number, rowBytes: number, rows: GatherRows): GatherShape {
  const { usual, most, warps = GATHER_WARPS } = rows;
  const warpBytes = Math.floor(room / warps / 128) * 128;
  const largest = Math.floor(warpBytes / (GATHER_STAGES * usual + 1) / 128) * 128;
  const partBytes = alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / largest)), 16);
  const fitting = Math.floor((warpBytes - partBytes) / GATHER_STAGES / 128) * 128;
  const stageBytes = Math.max(usual * partBytes, Math.min(fitting, most * partBytes));
  const sharedBytes = BARRIER_BYTES + warps * (GATHER_STAGES * stageBytes + partBytes);
  return { block: warps * 32, sharedBytes, partBytes, stageBytes };
}
