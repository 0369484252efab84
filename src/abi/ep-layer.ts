// What the CUDA kernels of EPAll2AllLayer take and exchange: arguments, the plan of a dispatch, words of its record.
import { EP_MAX_GROUP_RANKS, EP_MAX_RANKS } from './ep.ts';
import { defineLayout } from './layout.ts';

/** A source's tokens are sent in so many sections; when one has gone, its receivers may copy its rows. */
export const LAYER_SECTIONS = 8;
/**
 * In a rank's window, behind the barrier cells: per source and section a word {number of the dispatch u32, repeated
 * tokens through the section u32}, written at once by that source. Numbers only grow, so nothing is reset.
 */
export const LAYER_SECTION_BYTES = EP_MAX_RANKS * LAYER_SECTIONS * 8;

/**
 * Header words of a layer's exchange record: what must agree, then what may differ. Behind the header stand as many
 * words as there are bins: per rank of the group the tokens that go there more than once, then per expert its choices, then
 * per way the tokens that go to that host.
 */
export const layerRecordWords = {
  weightBytes: 0,
  scattered: 1,
  /** 1 with a bound on received rows. */
  bounded: 2,
  numTokens: 3,
  /** Flat index of the first choice that is not allowed, plus 1; 0 for none. */
  badChoice: 4,
  /** The same for a place outside the block of its expert. */
  badPlace: 5,
  /** 1 where a row of this rank was given to no choice. */
  emptyRow: 6,
  /** The sender's bound on the rows it receives; 0 for none. */
  rowBound: 7,
} as const;

/** Device memory, one per layer, zero at first: what later kernels of a dispatch need of the exchange. */
export const layerPlan = defineLayout('LayerPlan', {
  status: 'u32',
  /** Number of the dispatch. */
  sequence: 'u32',
  recvRows: 'u32',
  /** Tokens that arrive here once but have several rows here. */
  repeated: 'u32',
  /** Number, among them, of each source's first. */
  repeatedFirst: { of: 'u32', count: EP_MAX_GROUP_RANKS },
});

/** Mapped host memory; a sequence number is stored last and says for which dispatch the rest is. Counts per local expert follow. */
export const layerHostPlan = defineLayout('LayerHostPlan', {
  sequence: 'u32',
  /** The same, of the kernel that places rows as the caller says. */
  placeSequence: 'u32',
  status: 'u32',
  /** Word of the record that differs, or flat index of a bad choice or place. */
  detail: 'u32',
  /** The rank that differs, passed the bad value, or has an empty row. */
  culprit: 'u32',
  repeated: 'u32',
  /** The first dispatch with a bound that failed, until the host has taken note; 0 for none. And why, as above. */
  failedSequence: 'u32',
  failedStatus: 'u32',
  failedDetail: 'u32',
  failedCulprit: 'u32',
  /** The rank's bound, where that is exceeded. */
  failedExtent: 'u32',
  recvRows: { of: 'u32', count: EP_MAX_GROUP_RANKS },
});

/** Device memory, one per dispatch over several hosts, which its combines use too; see EpPlan. */
export const layerRoute = defineLayout('LayerRoute', {
  sentTokens: { of: 'u32', count: EP_MAX_GROUP_RANKS },
  servedTokens: { of: 'u32', count: EP_MAX_GROUP_RANKS },
});

/** See LayerPrepareArguments. */
export const LAYER_COUNTERS = 2 + LAYER_SECTIONS + EP_MAX_RANKS;

const peers = { of: 'ptr', count: EP_MAX_RANKS } as const;

export const layerPrepareArguments = defineLayout('LayerPrepareArguments', {
  peers,
  topk: 'ptr',
  /** i32 [maxTokens, topk]: the number of (token, choice) among its tile's for the expert; dispatch makes rows of them. */
  rowTable: 'ptr',
  /** i32 [tokens, topk] */
  rankTable: 'ptr',
  /** i32 [maxTokens, ways]: number of the token among its tile's that go to that host, or -1; dispatch makes places of them. */
  wayTable: 'ptr',
  /** i32 [maxTokens, groupRanks]: number of the token among its tile's that repeat at the rank, or -1. */
  repeatTable: 'ptr',
  /** u32 [tiles + 1, bins]: a tile's counts, then the counts of all tiles before it. */
  tileCounts: 'ptr',
  /** u32 [bins]: row, at its rank, of this rank's first row of the bin. */
  firstRows: 'ptr',
  /** u32 [experts + 1]: row where each expert's block starts when the outputs of all ranks are numbered as one. */
  blockStarts: 'ptr',
  numInputTokens: 'ptr',
  /** u32 [expertsPerRank]: rows that each expert here receives; null where the host waits for them. */
  recvCounts: 'ptr',
  plan: 'ptr',
  hostPlan: 'ptr',
  hostExperts: 'ptr',
  /**
   * u32 [LAYER_COUNTERS]: blocks that are done; complement of the first bad choice; per section, warps that have sent
   * it; all zero between kernels. Per source, repeated tokens that are being copied: zero when a dispatch begins.
   */
  counter: 'ptr',
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  exchangeOffset: 'u64',
  /** EpNetwork; null in a group on one host. */
  network: 'ptr',
  /** LayerRoute of this dispatch. */
  route: 'ptr',
  recordWords: 'u32',
  /** Ranks of this host, and this one's index there. */
  ranks: 'u32',
  rank: 'u32',
  /** The same in the group, over all hosts; other hosts than this one. */
  groupRanks: 'u32',
  groupRank: 'u32',
  ways: 'u32',
  tokens: 'u32',
  maxTokens: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  experts: 'u32',
  /** 32 tokens each; a tile has so many words and is taken by one block. */
  tileWords: 'u32',
  /** The same as openingEpoch and sequence in EpDispatchArguments; LayerPlan tells the last dispatch. */
  epoch: 'u32',
  call: 'u32',
  sequence: 'u32',
  weightBytes: 'u32',
  scattered: 'u32',
  /** Bound on received rows: no host waits, so nothing can grow. 0 for none. */
  rowBound: 'u32',
  capacityRows: 'u32',
  /** 1: tokens of this rank that repeat here count too, because combine sums them here. */
  localCombine: 'u32',
});

export const layerPlaceArguments = defineLayout('LayerPlaceArguments', {
  peers,
  outputs: peers,
  topk: 'ptr',
  places: 'ptr',
  rowTable: 'ptr',
  rankTable: 'ptr',
  blockStarts: 'ptr',
  plan: 'ptr',
  hostPlan: 'ptr',
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  exchangeOffset: 'u64',
  sourceOffset: 'u64',
  recordWords: 'u32',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  placeBytes: 'u32',
  expertsPerRank: 'u32',
  sequence: 'u32',
  /** Epochs of three barriers that follow each other. */
  epochs: { of: 'u32', count: 3 },
  calls: { of: 'u32', count: 3 },
});

export const layerDispatchArguments = defineLayout('LayerDispatchArguments', {
  peers,
  outputs: peers,
  x: 'ptr',
  topk: 'ptr',
  weights: 'ptr',
  rowTable: 'ptr',
  rankTable: 'ptr',
  repeatTable: 'ptr',
  wayTable: 'ptr',
  tileCounts: 'ptr',
  firstRows: 'ptr',
  plan: 'ptr',
  counter: 'ptr',
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  weightsOffset: 'u64',
  firstRowOffset: 'u64',
  duplicatesOffset: 'u64',
  repeatedOffset: 'u64',
  sectionOffset: 'u64',
  network: 'ptr',
  route: 'ptr',
  /**
   * i32 [served, maxTokens, topk] each: rows that tokens of other hosts have at this host's ranks, and the index of each
   * choice's rank; -1 for none. Of the descriptor.
   */
  forwardRows: 'ptr',
  forwardRanks: 'ptr',
  /** Rows of an output. */
  capacityRows: 'u32',
  ranks: 'u32',
  rank: 'u32',
  groupRanks: 'u32',
  groupRank: 'u32',
  ways: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  /** The same as in LayerPrepareArguments; rows beyond the received ones are marked. */
  rowBound: 'u32',
  /** Blocks that send first. */
  sendBlocks: 'u32',
  /** 1: rows that came once may have to be copied. */
  copies: 'u32',
  /** Bytes of one routing weight; 0 without weights. */
  weightBytes: 'u32',
  experts: 'u32',
  tileWords: 'u32',
  /** 1: rowTable holds final rows, which the caller chose. */
  placed: 'u32',
  /** 0: the one after `lastEpoch`, for kernels of a graph. */
  closingEpoch: 'u32',
  closingCall: 'u32',
  /** Bytes of shared memory that one warp stages rows in. */
  stageBytes: 'u32',
});

export const layerSumArguments = defineLayout('LayerSumArguments', {
  rows: 'ptr',
  duplicates: 'ptr',
  repeated: 'ptr',
  /** LayerPlan as that dispatch left it, if only it tells how many there are; else null. */
  plan: 'ptr',
  /** Repeated tokens, received rows; with `plan`, most of them. */
  count: 'u32',
  recvRows: 'u32',
  rowBytes: 'u32',
  /** The same as in EpCombineArguments. */
  stageBytes: 'u32',
  partBytes: 'u32',
  topkColumns: 'u32',
});

export const layerCombineArguments = defineLayout('LayerCombineArguments', {
  peers,
  outputs: peers,
  out: 'ptr',
  rowTable: 'ptr',
  rankTable: 'ptr',
  counter: 'ptr',
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  network: 'ptr',
  route: 'ptr',
  wayTable: 'ptr',
  forwardRows: 'ptr',
  forwardRanks: 'ptr',
  /** Rows of an output. */
  capacityRows: 'u32',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  stageBytes: 'u32',
  partBytes: 'u32',
  topkColumns: 'u32',
  /** 1: only a token's first row at each rank, which holds the sum of its rows there. */
  onePerRank: 'u32',
  /** The same as in EpDispatchArguments. */
  openingEpoch: 'u32',
  openingCall: 'u32',
  closingCall: 'u32',
});

export const layerBarrierArguments = defineLayout('LayerBarrierArguments', {
  peers,
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  /** EpNetwork; null in a group on one host. */
  network: 'ptr',
  /** 1: a barrier of all hosts; 0: of this one. */
  acrossHosts: 'u32',
  ranks: 'u32',
  rank: 'u32',
  epoch: 'u32',
  call: 'u32',
});

export const layerWidenArguments = defineLayout('LayerWidenArguments', {
  /** i32 [count] */
  from: 'ptr',
  /** i64 [count] */
  to: 'ptr',
  count: 'u32',
});
