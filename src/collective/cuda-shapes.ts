// How the kernels that move rows are launched: warps, what each stages in shared memory, and what a block needs of it.
import { alignUp } from '../abi/layout.ts';
import type { TriedSending } from './tried-shapes.ts';

/** The kernels' mbarriers, one for each stage of each warp, before what they stage. */
export const BARRIER_BYTES = 1024;
/** Of memory, in bytes. */
const LINE = 128;
/** More warps contend with each other: 8 to 16 are equally fast, 28 are slower. */
const MAX_STAGING_WARPS = 16;
/** Longer rows are staged in equal parts: a part's memory is free again sooner than a row's. */
const MAX_STAGE_BYTES = 8192;
/** The most with which parts are large enough, as many for each of an SM's four schedulers: with 11 or 13 sums take longer. */
const GATHER_WARPS = [12, 8, 4] as const;
/** Smaller ones are not worth starting the copy engine. */
const MIN_GATHER_PART = 1024;
/** What a warp of the kernels that add up or send has in hand at once: one part is used while the next is loaded. */
const STAGES = 2;

/** Warps of a dispatch block; some of them move rows. */
const SENDING_WARPS = 16;
/** With two parts in hand so many store what an SM can store; more are as fast, but leave less for choices and scales. */
const ROW_WARPS = 6;
/** Where a block has few tokens, and latency counts. */
const MAX_ROW_WARPS = 12;
/** So many SMs store what a GPU's links carry (NVLink 4: about 330 GB/s of 47 each). Beyond that links carry less. */
const LINK_SMS = 6.9;

export interface RowShape {
  /** Threads of a block. */
  readonly block: number;
  readonly sharedBytes: number;
  /** Most bytes of a row that a warp has in hand at once. */
  readonly partBytes: number;
}

export interface SendingShape extends RowShape {
  readonly grid: number;
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

export interface SendingConfig {
  /** Multiprocessors that may be used. */
  readonly sms: number;
  /** On this host, this one included. */
  readonly ranks: number;
}

/** Some warps of each block bring rows into memory of their own and store them from there. `tried`: in place of the rule. */
export function sendingShape(
  room: number,
  rowBytes: number,
  { sms, ranks }: SendingConfig,
  tried?: TriedSending,
): SendingShape {
  const grid = tried?.blocks ?? Math.min(sms, sendingBlocks(ranks));
  const partBytes = stagePart(rowBytes, tried?.mostPartBytes ?? MAX_STAGE_BYTES);
  const maxRowWarps = Math.max(1, Math.min(MAX_ROW_WARPS, Math.floor(room / (STAGES * partBytes))));
  const rowWarps = Math.min(maxRowWarps, tried?.warps ?? ROW_WARPS);
  const sharedBytes = BARRIER_BYTES + maxRowWarps * STAGES * partBytes;
  return { grid, block: SENDING_WARPS * 32, sharedBytes, partBytes, rowWarps, maxRowWarps };
}

/** How many fill the links, of each of which an even share of the stores goes to its own rank; one rank has no links. */
function sendingBlocks(ranks: number): number {
  return ranks === 1 ? Number.POSITIVE_INFINITY : Math.ceil((LINK_SMS * ranks) / (ranks - 1));
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
  /** Of a block; by default as many as leave parts large enough. */
  readonly warps?: number;
}

/** Each warp sums rows part by part: two stages for the parts of all rows, and room for one part of the sum. */
export function gatherShape(room: number, rowBytes: number, rows: GatherRows): GatherShape {
  const largeEnough = Math.min(rowBytes, MIN_GATHER_PART);
  const fits = (warps: number): boolean => mostPartBytes(room, warps, rows.usual) >= largeEnough;
  const warps = rows.warps ?? GATHER_WARPS.find(fits) ?? GATHER_WARPS.at(-1)!;
  const most = mostPartBytes(room, warps, rows.usual);
  const parts = Math.ceil(rowBytes / most);
  // Parts of rows that have several begin at whole lines of memory.
  const partBytes = alignUp(Math.ceil(rowBytes / parts), parts === 1 ? 16 : LINE);
  const fitting = wholeLines((wholeLines(room / warps) - partBytes) / STAGES);
  const stageBytes = Math.max(rows.usual * partBytes, Math.min(fitting, rows.most * partBytes));
  const sharedBytes = BARRIER_BYTES + warps * (STAGES * stageBytes + partBytes);
  return { block: warps * 32, sharedBytes, partBytes, stageBytes };
}

/** Of each row, where a warp has stages for the parts of so many and room for their sum. */
function mostPartBytes(room: number, warps: number, rows: number): number {
  return wholeLines(wholeLines(room / warps) / (STAGES * rows + 1));
}

function wholeLines(bytes: number): number {
  return Math.floor(bytes / LINE) * LINE;
}

/** Equal parts of at most `most` bytes. */
function stagePart(rowBytes: number, most: number): number {
  // Rows that are no multiple of 16 bytes are not staged; the stage is then only not zero.
  return alignUp(Math.ceil(rowBytes / Math.ceil(rowBytes / most)), 16);
}
