// How the kernels that move rows are launched: warps, what each stages in shared memory, and what a block needs of it.
import { alignUp } from '../abi/layout.ts';

/** A shape of the kernel that sends rows. */
export interface TriedSending {
  readonly blocks: number;
  /** Warps of a block that move rows. */
  readonly warps: number;
  /** Rows move in equal parts of at most so many bytes. */
  readonly mostPartBytes: number;
}

/** A shape of the kernel that adds rows up. */
interface TriedGather {
  readonly blocks: number;
  readonly warps: number;
}

export interface TriedShapes {
  readonly sending?: TriedSending;
  readonly gather?: TriedGather;
}

const triedByDevice = new WeakMap<object, TriedShapes>();

/** What objects that are made on the device from now on try. */
export function tryShapes(device: object, shapes: TriedShapes): void {
  triedByDevice.set(device, shapes);
}

export function triedShapes(device: object): TriedShapes {
  return triedByDevice.get(device) ?? {};
}

/** The kernels' mbarriers, one for each stage of each warp, before what they stage. */
export const BARRIER_BYTES = 1024;
/** Bytes of a line of memory. */
const LINE = 128;
/** More warps contend with each other: 8 to 16 are equally fast, 28 are slower. */
const MAX_STAGING_WARPS = 16;
/** Longer rows are staged in equal parts: a part's memory is free again sooner than a row's. */
const MAX_STAGE_BYTES = 8192;
/** The first of these that leaves parts of MIN_GATHER_PART. Multiples of 4 load an SM's four schedulers alike; 11 or 13 warps are slower. */
const GATHER_WARPS = [12, 8, 4] as const;
/** Smaller ones are not worth starting the copy engine. */
const MIN_GATHER_PART = 1024;
/** Parts that a warp holds at once: it uses one while the next is loaded (stagesPerWarp in stage-pair.cuh). */
const STAGES = 2;

/** Warps of a dispatch block; some of them move rows. */
const SENDING_WARPS = 16;
/** Six warps with two parts each store as much as an SM can. More are no faster and leave fewer for choices and scales. */
const ROW_WARPS = 6;
/** The most that move rows when a block has few tokens, so that latency counts. */
const MAX_ROW_WARPS = 12;
/** SMs whose stores to other GPUs fill the links, fitted to 2, 3 and 4 ranks of H200. With more SMs the links carry less. */
const LINK_SMS = 6.9;

interface RowShape {
  /** Threads of a block. */
  readonly block: number;
  readonly sharedBytes: number;
  /** Most bytes of a row that a warp has in hand at once. */
  readonly partBytes: number;
}

interface SendingShape extends RowShape {
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

interface SendingConfig {
  /** Multiprocessors that may be used. */
  readonly sms: number;
  /** Ranks on this host, this one included. */
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

/** Blocks that fill the links. Of what a block stores, one part in `ranks` stays on its own GPU. A rank alone has no links to fill. */
function sendingBlocks(ranks: number): number {
  return ranks === 1 ? Number.POSITIVE_INFINITY : Math.ceil((LINK_SMS * ranks) / (ranks - 1));
}

/** What each block of a dispatch counts in shared memory: choices per expert, and a mask for each of its tokens. */
interface CountedTokens {
  readonly experts: number;
  /** Tokens of a rank. */
  readonly tokens: number;
  readonly maskBytes: number;
}

/** Blocks that have room to count so many tokens. `Infinity` if no number has. */
export function countingBlocks(room: number, { experts, tokens, maskBytes }: CountedTokens): number {
  return Math.ceil(tokens / countedTokens(room, { experts, maskBytes }));
}

/** The most tokens that one block has room to count. */
export function countedTokens(room: number, { experts, maskBytes }: Omit<CountedTokens, 'tokens'>): number {
  return Math.max(0, Math.floor((room - experts * 4 - 16) / maskBytes));
}

interface GatherShape extends RowShape {
  /** Bytes for the parts of all rows of a sum. */
  readonly stageBytes: number;
}

interface GatherRows {
  /** Rows of most sums: parts are as large as they allow. */
  readonly usual: number;
  /** The most rows that share a stage, in smaller parts. */
  readonly most: number;
  /** Warps of a block; by default as many as leave parts large enough. */
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

/** The largest part of a row if a warp holds two parts of each of `rows` rows and one part of their sum. */
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
