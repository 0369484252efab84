// What ranks share in low-latency mode: how far each one is, what each calls, how scales of fp8 rows are written; and what the
// CUDA kernels take.
import { EP_MAX_GROUP_RANKS, EP_MAX_RANKS, EP_MAX_WAYS } from './ep.ts';
import { defineLayout } from './layout.ts';
import { EP_MAX_SERVED } from './network.ts';

/** Results of dispatches, and handles, that are alive at once; the parity of a dispatch's number tells which memory is its. */
export const LOW_LATENCY_RESULTS = 2;
/** Calls whose words a cell keeps, by number; more than any rank can be ahead of another. */
export const LOW_LATENCY_CALLS = 4;
const CACHE_LINE = 64;

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

/** What a rank's own kernels know of each rank, in pinned memory of the host: where the window of that life is. */
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
  /** Bits of the ranks that the dispatch of each result sent rows to. */
  sentTo: { of: 'u32', count: LOW_LATENCY_RESULTS },
  /** Blocks that are done with each half of a call; the count starts again behind the last one. */
  done: { of: 'u32', count: 2 },
});

/** Bits of a member's word that hold its state. */
export const LOW_LATENCY_STATE_BITS = 2;
/**
 * `active`: from the word's dispatch on. `absent`: masked, or gone. `connected`: has mapped the window and waits to become
 * active. `leaving`: active before the word's dispatch.
 */
export const lowLatencyStates = { active: 0, absent: 1, connected: 2, leaving: 3 } as const;

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
    /** The number of a combine, and in the upper half what the ranks must agree on; by that number. */
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
    /** Number among the receiver's experts, or -1. */
    expert: 'i32',
    /** The token's row among those that the source has for the expert. */
    place: 'u32',
    weight: 'f32',
    /** Number of the dispatch; what is there with another number is of an earlier one. */
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
    /** Dispatches sent into each receive slot, the number of the last one, and whether its rows here are still held. */
    sent: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    dispatchOf: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    held: { of: 'u32', count: LOW_LATENCY_MAX_SLOTS },
    /** Slots of the last dispatch and of the one before it, plus 1; 0 for none. */
    lastSlot: 'u32',
    slotBefore: 'u32',
    /** Combines sent of each result, and the number of the last one. */
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

/** What the ranks of an object are: fixed, all on one host; such that come and go; fixed, on several hosts. */
export const lowLatencyGroups = { host: 0, elastic: 1, hosts: 2 } as const;

/**
 * On GPUs, the first bytes of what a dispatch sends to a rank of another host, and of the sums that come back. Of a dispatch
 * follow, each at a multiple of 16 bytes: i32 [tokens, 1 + ranks of that host ('rank-major') or 1] the row of each token in the
 * message and at each of those ranks, -1 for none; LowLatencyChoice [tokens, K] with the number among all experts; the rows, each
 * with its scales behind it. Of sums follow the rows.
 */
export const lowLatencyHostMessage = defineLayout(
  'LowLatencyHostMessage',
  {
    tokens: 'u32',
    rows: 'u32',
    /** What the ranks must agree on. */
    call: 'u32',
    /** The number of the dispatch or the combine. */
    number: 'u32',
    /** One of lowLatencyFailures, and its detail: nothing follows then. */
    failure: 'u32',
    detail: 'u32',
  },
  64,
);

/** On GPUs, how many blocks are done with what the last one of them ends; zero at first, and between kernels. */
export const lowLatencyHostsDone = defineLayout('LowLatencyHostsDone', {
  sent: 'u32',
  forwarded: 'u32',
  added: 'u32',
  /** The flat index of the first choice that is none of an expert, all its bits changed; 0 for none. */
  badChoice: 'u32',
  /** Rows that go each way. */
  rows: { of: 'u32', count: EP_MAX_WAYS },
  /** For each source that is served. */
  summed: { of: 'u32', count: EP_MAX_SERVED },
});

/** Across hosts the window of a rank elsewhere is a stand-in, in the window of the rank that stands for it here. */
const peers = { of: 'ptr', count: EP_MAX_GROUP_RANKS } as const;

/** Offsets are from the start of a window, to the slot in use; `countsOffset` to the counts of all numbers of calls. */
export const lowLatencyDispatchArguments = defineLayout('LowLatencyDispatchArguments', {
  peers,
  /** LowLatencyBlock for each block. */
  blocks: 'ptr',
  x: 'ptr',
  topk: 'ptr',
  weights: 'ptr',
  /**
   * i32 [T, ranks]: where rows of this rank's tokens stand in its slot at each rank, -1 where they do not go. By rank they stand
   * close together, by expert each one at the index of its token.
   */
  sentRows: 'ptr',
  /** i32 [T, K, 2]: expert of each choice or -1, and the token's row among this rank's for it; null where nobody asks. */
  sentPlaces: 'ptr',
  /** Results by expert; of rank-major `arrived` alone. */
  rows: 'ptr',
  scales: 'ptr',
  counts: 'ptr',
  dropped: 'ptr',
  ranges: 'ptr',
  sources: 'ptr',
  /**
   * i32 and f32 [ranks, M, K]: row of each choice of the sources' tokens, -1 where its expert is at another rank, -2 where the
   * expert had no room; and its weight. Null where nobody asks.
   */
  rowOf: 'ptr',
  rowWeights: 'ptr',
  /** i32 [ranks]: rows of each source's slot, as LowLatencyFlags.calls tells. */
  arrived: 'ptr',
  /** Memory of elastic objects: LowLatencyMember of rank 0, LowLatencyPeer by rank, LowLatencyDecision by half, LowLatencyElastic. */
  board: 'ptr',
  table: 'ptr',
  decisions: 'ptr',
  elastic: 'ptr',
  /** i32 [ranks]: 1 where the rank's rows are in the result. */
  activeMask: 'ptr',
  /** i32 [T, K]: experts of all choices, for the count of those that are dropped. */
  keptChoices: 'ptr',
  expertStats: 'ptr',
  waitStats: 'ptr',
  /** Across hosts: EpNetwork, LowLatencyHostsDone. */
  network: 'ptr',
  hostsDone: 'ptr',
  /** i32 [T, ways]: the row of each token among those that go this way, or -1. */
  sentWays: 'ptr',
  /**
   * For each source that is served: i32 [M, ranks of this host], where each row of its message stands in the source's slot at each
   * rank here, or -1; u32, how many rows it has.
   */
  servedRows: 'ptr',
  servedCounts: 'ptr',
  /** u64 in host memory: rows beyond the capacity of their experts so far. */
  droppedRows: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  scalesOffset: 'u64',
  sourcesOffset: 'u64',
  choicesOffset: 'u64',
  weightsOffset: 'u64',
  countsOffset: 'u64',
  firstRowsOffset: 'u64',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  hidden: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  maxTokens: 'u32',
  experts: 'u32',
  expertsPerRank: 'u32',
  /** The rank of an expert is the upper half of its product with this; 0: its number. */
  rankFactor: 'u32',
  /** C. */
  capacity: 'u32',
  /** One of lowLatencyScales, if rows are of fp8. */
  scaleKind: 'u32',
  failOnOverflow: 'u32',
  /** 1: senders are told where their rows begin. */
  sharesFirstRows: 'u32',
  slot: 'u32',
  call: 'u32',
  /** Sum of lowLatencyPhases. */
  phases: 'u32',
  /** Numbers of elastic objects: bytes from one rank's LowLatencyMember to the next; of the launch; of the dispatch. */
  boardStride: 'u32',
  stamp: 'u32',
  number: 'u32',
  /** Dispatches that a receive slot is for at a time; in 'rank-major' the slot that this dispatch gives up. */
  slots: 'u32',
  releasedSlot: 'u32',
  /** Set by the kernel itself: as in LowLatencyDecision. Across hosts `active` has the ranks of this host. */
  active: 'u32',
  told: 'u32',
});

export const lowLatencyCombineArguments = defineLayout('LowLatencyCombineArguments', {
  peers,
  blocks: 'ptr',
  y: 'ptr',
  out: 'ptr',
  /** f32 [T, K], of the choices. */
  weights: 'ptr',
  /** The same as in LowLatencyDispatchArguments of the dispatch. */
  sentRows: 'ptr',
  sentPlaces: 'ptr',
  rowOf: 'ptr',
  rowWeights: 'ptr',
  /** i32: tokens of each source; in 'rank-major' the rows of each that came; where all choices travel, those of each expert. */
  counts: 'ptr',
  /** Memory of elastic objects: LowLatencyMember of rank 0, LowLatencyPeer by rank, LowLatencyDecision by half, LowLatencyElastic. */
  board: 'ptr',
  table: 'ptr',
  decisions: 'ptr',
  elastic: 'ptr',
  /** i32 [ranks]: 1 where the rank's sums are in the result; i32 [T, K] of the dispatch; i32 [T]. */
  activeMask: 'ptr',
  keptChoices: 'ptr',
  droppedChoices: 'ptr',
  waitStats: 'ptr',
  /** Across hosts, the same as in LowLatencyDispatchArguments of the dispatch. */
  network: 'ptr',
  hostsDone: 'ptr',
  sentWays: 'ptr',
  servedRows: 'ptr',
  servedCounts: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  firstRowsOffset: 'u64',
  ranks: 'u32',
  rank: 'u32',
  /** The block of rows that this rank writes, of those that peers put to a rank: its rank, or its index on its host. */
  column: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  topkColumns: 'u32',
  maxTokens: 'u32',
  expertsPerRank: 'u32',
  capacity: 'u32',
  /** 1: y is where peers read it. */
  inPlace: 'u32',
  /** Number of the dispatch, modulo LOW_LATENCY_RESULTS. */
  result: 'u32',
  call: 'u32',
  phases: 'u32',
  /** The same as in LowLatencyDispatchArguments; `number` is that of the combine, `dispatch` that of its handle. */
  boardStride: 'u32',
  stamp: 'u32',
  number: 'u32',
  dispatch: 'u32',
  /** The last combine in the memory of this result, and the dispatch of its handle; 0 for none. */
  before: 'u32',
  beforeDispatch: 'u32',
  active: 'u32',
  told: 'u32',
});
