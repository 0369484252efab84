// How the kernels that move rows are launched: warps, what each stages in shared memory, and what a block needs of it.
import { alignUp } from '../abi/layout.ts';
import type { TriedSending } from './tried-shapes.ts';

/** The kernels' mbarriers, one for each stage of each warp, before what they stage. */
export const BARRIER_BYTES = 1024;
/** More warps contend with each other: 8 to 16 are equally fast, 28 are slower. */
const MAX_STAGING_WARPS = 16;
/** Longer rows are staged in equal parts: a part's memory is free again sooner than a row's. */
const MAX_STAGE_BYTES = 8192;
/** More warps would leave each too small a chunk for the copy engine to be worth starting. */
const GATHER_WARPS = 7;
const GATHER_STAGES = 2;
/** One warp less pays where each then has parts so many times as large. */
const WORTH_A_GATHER_WARP = 1.25;

/** Warps of a dispatch block; some of them move rows. */
const SENDING_WARPS = 16;
const MAX_ROW_WARPS = 12;
/** With fewer blocks than this a GPU cannot fill its links, and the more warps move rows the better. */
const SENDING_BLOCKS = 12;
/** A warp that moves rows holds one of up to this size whole. */
const MAX_SENT_PART = 16_384;
/**
 * Bytes that the warps of a GPU have on their way to other GPUs, about what its links hold: more only queues, and then
 * the links carry a tenth less. Measured with 4 H200; the steps of the rate beyond it are sharp.
 */
const WIRE_BYTES_UNDER_WAY = 930_000;
/**
 * Two ranks: half of what a warp stores stays in its own GPU, so links take more warps to fill. The fastest of what was
 * measured with 2 H100 and 2 H200 that leaves half of the warps to choices, for parts of more than MAX_STAGE_BYTES and others.
 */
const PAIR = { large: { blocks: 14, rowWarps: 8 }, small: { blocks: 16, rowWarps: 6 } };

export interface RowShape {
  /** Threads of a block. */
  readonly block: number;
  readonly sharedBytes: number;
  /** Most bytes of a row that a warp has in hand at once. */
  readonly partBytes: number;
}

export interface SendingShape extends RowShape {
  readonly grid: number;
  /** Parts of rows that a warp has in shared memory at once. */
  readonly stages: number;
  /** Warps of a block that move rows, and how many may where a block has few tokens and latency counts. */
  readonly rowWarps: number;
  readonly maxRowWarps: number;
}

/** Each warp brings a row into memory of its own and stores it from there. `room`: shared memory beside the barriers. */
export function stagingShape(room: number, rowBytes: number): RowShape {
  const partBytes = stagePart(rowBytes, MAX_STAGE_BYTES);
  const warps = Math.max(1, Math.min(MAX_STAGING_WARPS, Math.floor(room / partBytes)));
  return { block: warps * 32, sharedBytes: BARRIER_BYTES + warps * partBytes, partBytes };
}

/** What sets the traffic of a dispatch, besides its rows. */
export interface SendingConfig {
  /** Multiprocessors that may be used. */
  readonly sms: number;
  readonly ranks: number;
  readonly topk: number;
}

/** Some warps of each block bring rows into memory of their own and store them from there. `tried`: in place of the rule. */
export function sendingShape(
  room: number,
  rowBytes: number,
  { sms, ranks, topk }: SendingConfig,
  tried?: TriedSending,
): SendingShape {
  const grid = tried?.blocks ?? Math.min(sms, sendingBlocks(ranks, rowBytes));
  const mostPart = tried?.mostPartBytes ?? (sms < SENDING_BLOCKS ? MAX_STAGE_BYTES : MAX_SENT_PART);
  const partBytes = stagePart(rowBytes, mostPart);
  const stages = tried?.stages ?? 1;
  const most = Math.max(1, Math.min(MAX_ROW_WARPS, Math.floor(room / (stages * partBytes))));
  // Ranks other than its own that a token goes to, with even routing.
  const copies = (ranks - 1) * (1 - (1 - 1 / ranks) ** topk);
  const filling =
    ranks === 2 ? pairOf(rowBytes).rowWarps : Math.round(WIRE_BYTES_UNDER_WAY / (grid * partBytes * copies));
  const chosen = tried?.warps ?? (grid < SENDING_BLOCKS || ranks === 1 ? most : filling);
  const rowWarps = Math.max(1, Math.min(most, chosen));
  const sharedBytes = BARRIER_BYTES + most * stages * partBytes;
  return { grid, block: SENDING_WARPS * 32, sharedBytes, partBytes, stages, rowWarps, maxRowWarps: most };
}

/** How many fill the links; one rank has none, and takes all. */
function sendingBlocks(ranks: number, rowBytes: number): number {
  if (ranks === 1) return Number.POSITIVE_INFINITY;
  if (ranks > 2) return SENDING_BLOCKS;
  return pairOf(rowBytes).blocks;
}

function pairOf(rowBytes: number): (typeof PAIR)[keyof typeof PAIR] {
  return stagePart(rowBytes, MAX_SENT_PART) > MAX_STAGE_BYTES ? PAIR.large : PAIR.small;
}

export interface GatherShape extends RowShape {
  /** Sums whose rows a warp has in shared memory at once. */
  readonly stages: number;
  /** Bytes for the parts of all rows of a sum. */
  readonly stageBytes: number;
}

export interface GatherRows {
  /** Rows of most sums: parts are as large as they allow. */
  readonly usual: number;
  /** So many share a stage in smaller parts. */
  readonly most: number;
  /** Of a block; by default GATHER_WARPS, or one less. */
  readonly warps?: number;
  /** By default GATHER_STAGES. */
  readonly stages?: number;
}

/** Each warp sums rows part by part: stages for the parts of all rows, and room for one part of the sum. */
export function gatherShape(room: number, rowBytes: number, rows: GatherRows): GatherShape {
  if (rows.warps !== undefined) return gatherBy(rows.warps, room, rowBytes, rows);
  const shape = gatherBy(GATHER_WARPS, room, rowBytes, rows);
  const larger = gatherBy(GATHER_WARPS - 1, room, rowBytes, rows);
  return larger.partBytes >= shape.partBytes * WORTH_A_GATHER_WARP ? larger : shape;
}

function gatherBy(warps: number, room: number, rowBytes: number, rows: GatherRows): GatherShape {
  const { usual, most, stages = GATHER_STAGES } = rows;
  const warpBytes = Math.floor(room / warps / 128) * 128;
  const largest = Math.floor(warpBytes / (stages * usual + 1) / 128) * 128;
  const parts = Math.ceil(rowBytes / largest);
  // Parts of rows that have several begin at whole lines of memory.
  const partBytes = alignUp(Math.ceil(rowBytes / parts), parts === 1 ? 16 : 128);
  const fitting = Math.floor((warpBytes - partBytes) / stages / 128) * 128;
  const stageBytes = Math.max(usual * partBytes, Math.min(fitting, most * partBytes));
  const sharedBytes = BARRIER_BYTES + warps * (stages * stageBytes + partBytes);
  return { block: warps * 32, sharedBytes, partBytes, stages, stageBytes };
}

/** Equal parts of at most `most` bytes. */
function stagePart(rowBytes: number, most: number): number {
  // Rows that are no multiple of 16 bytes are not staged; the stage is then only not zero.
  return alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / most)), 16);
}
