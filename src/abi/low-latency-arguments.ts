// What the low-latency CUDA kernels take.
import { EP_MAX_RANKS } from './ep-arguments.ts';
import { defineLayout } from './layout.ts';

const peers = { of: 'ptr', count: EP_MAX_RANKS } as const;

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
  /** Of elastic objects: LowLatencyMember of rank 0, LowLatencyPeer by rank, LowLatencyDecision by half, LowLatencyElastic. */
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
  /** Of lowLatencyPhases. */
  phases: 'u32',
  /** Of elastic objects: bytes from one rank's LowLatencyMember to the next; of the launch; of the dispatch. */
  boardStride: 'u32',
  stamp: 'u32',
  number: 'u32',
  /** Dispatches that a receive slot is for at a time; in 'rank-major' the slot that this dispatch gives up. */
  slots: 'u32',
  releasedSlot: 'u32',
  /** Set by the kernel itself: as in LowLatencyDecision. */
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
  /** As in LowLatencyDispatchArguments, of the dispatch. */
  sentRows: 'ptr',
  sentPlaces: 'ptr',
  rowOf: 'ptr',
  rowWeights: 'ptr',
  /** i32: tokens of each source; in 'rank-major' the rows of each that came; where all choices travel, those of each expert. */
  counts: 'ptr',
  /** Of elastic objects: LowLatencyMember of rank 0, LowLatencyPeer by rank, LowLatencyDecision by half, LowLatencyElastic. */
  board: 'ptr',
  table: 'ptr',
  decisions: 'ptr',
  elastic: 'ptr',
  /** i32 [ranks]: 1 where the rank's sums are in the result; i32 [T, K] of the dispatch; i32 [T]. */
  activeMask: 'ptr',
  keptChoices: 'ptr',
  droppedChoices: 'ptr',
  waitStats: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  firstRowsOffset: 'u64',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  topkColumns: 'u32',
  maxTokens: 'u32',
  expertsPerRank: 'u32',
  capacity: 'u32',
  /** 1: y is where peers read it. */
  inPlace: 'u32',
  /** Of the dispatch, modulo LOW_LATENCY_RESULTS. */
  result: 'u32',
  call: 'u32',
  phases: 'u32',
  /** As in LowLatencyDispatchArguments; `number` is that of the combine, `dispatch` that of its handle. */
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
