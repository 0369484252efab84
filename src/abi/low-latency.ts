// What ranks share in low-latency mode: how far each one is, what each calls, and how scales of fp8 rows are written.
import { EP_MAX_RANKS } from './ep-arguments.ts';
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
 *   `dispatchCall` of that number. `dispatchedHigh`: how often it has wrapped.
 * - `released`: the source has no more use for what it received in dispatches up to this one; their slots there are free.
 * - `combined`: the last combine for which the source's rows can be read, and `combineCall` of it.
 * - `taken`, by result: the source has read all it needs of the receiver's rows there, in combines up to this one. Hooks end
 *   combines of different results in any order.
 */
export const lowLatencyCell = defineLayout(
  'LowLatencyCell',
  {
    dispatched: 'i32',
    dispatchedHigh: 'i32',
    released: 'i32',
    combined: 'i32',
    taken: { of: 'i32', count: LOW_LATENCY_RESULTS },
    /** By number of the dispatch modulo LOW_LATENCY_CALLS: rows of its slot here; 'expert-major': tokens, wherever they go. */
    rows: { of: 'i32', count: LOW_LATENCY_CALLS },
    dispatchCall: { of: 'i32', count: LOW_LATENCY_CALLS },
    /** By result: the last combine whose rows lay there. */
    combineCall: { of: 'i32', count: LOW_LATENCY_RESULTS },
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
 *
 * On GPUs alone, whose kernels cannot compare and set a word of the host:
 *
 * - `life`: which of its windows the rank has now, from 1; 0 or negative while it has none. Only its own process writes it.
 * - `marks`, by rank: its word when a kernel of this rank masked it, with the lowest bit changed. The mark holds as long as the
 *   word is the same, so nobody has to take it back. Only kernels of this rank write it.
 */
export const lowLatencyMember = defineLayout(
  'LowLatencyMember',
  { word: 'i32', epoch: 'i32', founder: 'i32', life: 'i32', marks: { of: 'i32', count: EP_MAX_RANKS } },
  CACHE_LINE,
);

/** Of one rank, in its own part of what elastic ranks on GPUs share: how others map its window, and whose it has mapped. */
export const lowLatencyMapping = defineLayout(
  'LowLatencyMapping',
  {
    /** Of the window of `life`, which is stored behind it. */
    handle: { of: 'u8', count: 64 },
    /** By rank: the life of the window that this rank has mapped; 0 for none. */
    mapped: { of: 'i32', count: EP_MAX_RANKS },
  },
  CACHE_LINE,
);

/** Of a rank's own kernels, one per rank in pinned memory of the host: where the window of that life is. */
export const lowLatencyPeer = defineLayout('LowLatencyPeer', { window: 'ptr', life: 'u32' }, 16);

/**
 * What the first block of an elastic kernel has found out for all of them, in device memory; one for each half of a call.
 * `stamp` is stored last: the number of the launch.
 */
export const lowLatencyDecision = defineLayout('LowLatencyDecision', {
  stamp: 'u32',
  /** 1: this rank takes no part, and the kernel leaves. */
  isOut: 'u32',
  /** Bits of ranks: whose rows count, or who gets rows; who hears that the half is done. */
  active: 'u32',
  told: 'u32',
  windows: { of: 'ptr', count: EP_MAX_RANKS },
  /** Rows that came. */
  rows: { of: 'u32', count: EP_MAX_RANKS },
});

/** What elastic kernels remember in device memory; zero at first. */
export const lowLatencyElastic = defineLayout('LowLatencyElastic', {
  /** By result: bits of the ranks that its dispatch sent rows to. */
  sentTo: { of: 'u32', count: LOW_LATENCY_RESULTS },
  /** By half of a call: blocks that are done with it; starts again behind the last one. */
  done: { of: 'u32', count: 2 },
});

/** Of a member's word: those of its state. */
export const LOW_LATENCY_STATE_BITS = 2;
/**
 * `active`: from the word's dispatch on. `absent`: masked, or gone. `connected`: has mapped the window and waits to become
 * active. `leaving`: active before the word's dispatch.
 */
export const lowLatencyStates = { active: 0, absent: 1, connected: 2, leaving: 3 } as const;

/** One per rank of CPU ranks: the word that it sleeps on, and whether it does; see RankBells. */
export const lowLatencyBell = defineLayout('LowLatencyBell', { bell: 'i32', sleepers: 'i32' }, CACHE_LINE);

/** Receive slots at most; see receiveSlots of LowLatencySize. */
export const LOW_LATENCY_MAX_SLOTS = 4;
/** Threads of each block of a low-latency kernel, whose barriers count them. */
export const LOW_LATENCY_THREADS = 1024;
/** Blocks of a low-latency kernel at most. */
export const LOW_LATENCY_MAX_BLOCKS = 256;
/** What the blocks of one kernel add together to a word of LowLatencyFlags that counts kernels. */
export const LOW_LATENCY_UNIT = 1024;

/**
 * On GPUs, in place of LowLatencyCell: one per (receiver, source), in the receiver's window, written by kernels of the source
 * alone. The blocks of a kernel each add their share, LOW_LATENCY_UNIT together, so nobody waits for the last one of a grid.
 * Counters are never reset, wrap, and are compared by signed difference. `released` and `taken` are told by the next kernel of
 * the source, whichever it is, as its first act: by then nothing is under way for which a fence would have to wait. Kernels
 * behind a hook, and those of a combine whose buffer peers may ask for, tell it themselves, at their end.
 *
 * - `arrived`: dispatches of the source whose rows are here, with `calls` of that number. Where the words of rows show that
 *   they have come (LOW_LATENCY_EMPTY), it is raised as soon as the dispatch begins.
 * - `combined`: combines for which the source's rows can be read, with `combineCalls` of that number. It is not used where the
 *   words of sums show that they have come.
 * - `released`, by receive slot: how often the source has given up what the receiver put into that slot of the source.
 * - `taken`, by result: combines for which the source has read all it needs.
 * - `failure`: one of lowLatencyFailures from when the source can go no further; the first one stays. `combineFailure` is the same
 *   beside `combined`, stored after it: one load has a count and whether it will ever rise.
 *
 * Where ranks come and go, the last block of a kernel stores numbers in place of counts: `arrived` and `released` those of
 * dispatches, `combined` and `taken` those of combines (CombineNumbers), so that a rank that joins goes on where the others are.
 */
export const lowLatencyFlags = defineLayout(
  'LowLatencyFlags',
  {
    arrived: 'u32',
    failure: 'u32',
    combined: 'u32',
    combineFailure: 'u32',
    released: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    /**
     * By number of the dispatch modulo LOW_LATENCY_CALLS, written at once: the number, what the ranks must agree on, the number
     * again, and the rows of its slot here ('expert-major': tokens, wherever they go).
     */
    calls: { of: 'u32', count: 4 * LOW_LATENCY_CALLS },
    /** By number of the combine: the number, and in the upper half what the ranks must agree on. */
    combineCalls: { of: 'u64', count: LOW_LATENCY_CALLS },
    taken: { of: 'u32', count: LOW_LATENCY_RESULTS },
    failureNumber: 'u32',
    failureDetail: 'u32',
    failureExtent: 'u32',
  },
  128,
);

/**
 * On GPUs, of 'expert-major': a choice of a token at each rank, in the order of sources, tokens and columns. 16 bytes, which are
 * written and read at once.
 */
export const lowLatencyChoice = defineLayout(
  'LowLatencyChoice',
  {
    /** Of the receiver's experts, or -1. */
    expert: 'i32',
    /** The token's row among those that the source has for the expert. */
    place: 'u32',
    weight: 'f32',
    /** Of the dispatch; what is there with another number is of an earlier one. */
    number: 'u32',
  },
  16,
);

/**
 * On GPUs: the value of every word of a row that has not come yet, where words show that rows have come. The receiver writes
 * it before the first call, and again when it has read a word. Fp8 codes, their scales and rounded sums never have this
 * value, so neither a fence nor a flag has to follow them; rows of bf16 may have it.
 */
export const LOW_LATENCY_EMPTY = 0xffff_ffff;

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
    sent: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    dispatchOf: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    held: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    /** Slots of the last dispatch and of the one before it, plus 1; 0 for none. */
    lastSlot: 'u32',
    slotBefore: 'u32',
    /** By result: combines sent, and the number of the last one. */
    combineUses: { of: 'u32', count: LOW_LATENCY_RESULTS },
    combineOf: { of: 'u32', count: LOW_LATENCY_RESULTS },
    /**
     * What the last kernel has read and peers may write again, which the next one tells them: a bit for each slot of
     * `released`, then one for each result of `taken`. Of the first block alone.
     */
    owed: 'u32',
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
/** Rows as a dispatch brings them: of fp8 those whose bytes are a multiple of 16, and of 8. */
export const lowLatencyRows = { bf16: 0, fp8: 1, fp8Narrow: 2 } as const;
