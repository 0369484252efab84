// What ranks share in low-latency mode: how far each one is, what each calls, and how scales of fp8 rows are written.
import { defineLayout } from './layout.ts';

/** Results of dispatches, and handles, that are alive at once; the parity of a dispatch's number tells which memory is its. */
export const LOW_LATENCY_RESULTS = 2;
/** Calls whose words a cell keeps, by number; more than any rank can be ahead of another. */
export const LOW_LATENCY_CALLS = 4;
const CACHE_LINE = 64;

/**
 * One per (receiver, source), in the receiver's part of the window; only the source writes to it. Numbers count calls from
 * 1, are never reset, wrap, and are compared by signed difference: nothing has to be cleaned between calls.
 *
 * - `dispatched`: the last dispatch whose rows the source has put here. Its store publishes the rows, and `rows` and
 *   `dispatchCall` of that number.
 * - `released`: the source has no more use for what it received in dispatches up to this one; their slots there are free.
 * - `combined`: the last combine for which the source's rows can be read, and `combineCall` of that number.
 * - `taken`: the source has read all it needs of the receiver's rows in combines up to this one.
 */
export const lowLatencyCell = defineLayout(
  'LowLatencyCell',
  {
    dispatched: 'i32',
    released: 'i32',
    combined: 'i32',
    taken: 'i32',
    /** By number of the dispatch modulo LOW_LATENCY_CALLS: rows that it brings here. */
    rows: { of: 'i32', count: LOW_LATENCY_CALLS },
    dispatchCall: { of: 'i32', count: LOW_LATENCY_CALLS },
    combineCall: { of: 'i32', count: LOW_LATENCY_CALLS },
  },
  CACHE_LINE,
);

/**
 * One per rank, in its own part of the window; of elastic objects alone.
 *
 * - `word`: how the rank takes part, any rank changes it by compare-and-set: one of lowLatencyStates in bits 0-1, above them
 *   the number of a dispatch. Zero, as new memory is: active from the first one on.
 * - `epoch`: in the part of rank 0, how often a word has changed. Wraps.
 * - `founder`: in the part of rank 0, a lock: 1 + the rank that looks whether all must begin anew, or 0.
 */
export const lowLatencyMember = defineLayout(
  'LowLatencyMember',
  { word: 'i32', epoch: 'i32', founder: 'i32' },
  CACHE_LINE,
);

/**
 * `active`: from the word's dispatch on. `absent`: masked, or gone. `connected`: has mapped the window and waits to become
 * active. `leaving`: active before the word's dispatch.
 */
export const lowLatencyStates = { active: 0, absent: 1, connected: 2, leaving: 3 } as const;

/** One per rank of CPU ranks: the word that it sleeps on, and whether it does; see RankBells. */
export const lowLatencyBell = defineLayout('LowLatencyBell', { bell: 'i32', sleepers: 'i32' }, CACHE_LINE);

/** Receive slots at most; see receiveSlots of LowLatencySize. */
const MOST_SLOTS = 4;
/** Blocks of a low-latency kernel at most. */
export const LOW_LATENCY_MAX_BLOCKS = 256;
/** What the blocks of one kernel add together to a word of LowLatencyFlags that counts kernels. */
export const LOW_LATENCY_UNIT = 1024;

/**
 * On GPUs, in place of LowLatencyCell: one per (receiver, source), in the receiver's window, written by kernels of the source
 * alone. The blocks of a kernel each add their share, LOW_LATENCY_UNIT together, so nobody waits for the last one of a grid.
 * Counters are never reset, wrap, and are compared by signed difference.
 *
 * - `arrived`: dispatches of the source whose rows are here, with `rows` and `calls` of that number.
 * - `combined`: combines for which the source's rows can be read, with `combineCalls` of that number.
 * - `released`, by receive slot: how often the source has given up what the receiver put into that slot of the source.
 * - `taken`, by result: combines for which the source has read all it needs.
 * - `failure`: one of lowLatencyFailures from when the source can go no further; the first one stays.
 */
export const lowLatencyFlags = defineLayout(
  'LowLatencyFlags',
  {
    arrived: 'u32',
    combined: 'u32',
    released: { of: 'u32', count: MOST_SLOTS },
    taken: { of: 'u32', count: LOW_LATENCY_RESULTS },
    failure: 'u32',
    failureNumber: 'u32',
    failureDetail: 'u32',
    failureExtent: 'u32',
    /** By number of the dispatch modulo LOW_LATENCY_CALLS: rows that it brings here. */
    rows: { of: 'u32', count: LOW_LATENCY_CALLS },
    /** By number of the call: the number, and in the upper half what the ranks must agree on. */
    calls: { of: 'u64', count: LOW_LATENCY_CALLS },
    combineCalls: { of: 'u64', count: LOW_LATENCY_CALLS },
  },
  128,
);

/** Why a rank's kernels can go no further; `detail` and `extent` of it. */
export const lowLatencyFailures = {
  none: 0,
  /** The flat index of the choice. */
  badChoice: 1,
  /** The expert, and the rows that came for it. */
  overflow: 2,
  gaveUp: 3,
} as const;

/**
 * On GPUs, one per block of the kernels in device memory, zero at first: how far this rank is. Each block keeps it for itself,
 * so that kernels need no meeting of their blocks. Numbers of calls come from here and not from the host: a kernel that a graph
 * replays counts on.
 */
export const lowLatencyBlock = defineLayout(
  'LowLatencyBlock',
  {
    dispatches: 'u32',
    combines: 'u32',
    /** By receive slot: dispatches sent into it, the number of the last one, and whether its rows here are still held. */
    sent: { of: 'u32', count: MOST_SLOTS },
    dispatchOf: { of: 'u32', count: MOST_SLOTS },
    held: { of: 'u32', count: MOST_SLOTS },
    /** Slots of the last dispatch and of the one before it, plus 1; 0 for none. */
    lastSlot: 'u32',
    slotBefore: 'u32',
    /** By result: combines sent, and the number of the last one. */
    combineUses: { of: 'u32', count: LOW_LATENCY_RESULTS },
    combineOf: { of: 'u32', count: LOW_LATENCY_RESULTS },
  },
  128,
);

/** Parts of a kernel's work: both in a call, each alone around a hook; `buffer` waits until its memory may be written. */
export const lowLatencyPhases = { send: 1, receive: 2, buffer: 4 } as const;

/** What a call word in a record of a wait was waited for, in its upper 4 bits. */
export const lowLatencyWaits = { rows: 0, slot: 1, combineRows: 2, combineSlot: 3 } as const;
export const LOW_LATENCY_WAIT_SHIFT = 28;

/** How experts' rows travel back. */
export const lowLatencyTravels = { rankSums: 0, choices: 1, rankMajor: 2 } as const;

/**
 * Scales of fp8 rows, one per FP8_GROUP columns: f32; f32 rounded up to powers of two; the exponents of those, four in a
 * 32-bit word, the first one lowest.
 */
export const lowLatencyScales = { f32: 0, rounded: 1, ue8m0: 2 } as const;
/** Of rows that are not quantised, among lowLatencyScales. */
export const LOW_LATENCY_BF16 = 3;
