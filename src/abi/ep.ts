// What the expert-parallel CUDA kernels take and exchange: arguments, the plan of a dispatch, arrival words, records.
import { defineLayout } from './layout.ts';

/** Most ranks of one host that CUDA kernels serve. */
export const EP_MAX_RANKS = 8;
/** Most ranks of a group, over all hosts; with the other hosts they are at most so many, too: a lane each. */
export const EP_MAX_GROUP_RANKS = 32;
export const EP_MAX_WAYS = 16;
/** Most experts of all ranks: blocks count them in shared memory. */
export const EP_MAX_EXPERTS = 4096;
/** Most blocks of a dispatch; their counts are added up in device memory. */
export const EP_MAX_BLOCKS = 256;
/** Bytes before the regions of a rank's window. */
export const EP_SYNC_BYTES = 4096;

/**
 * At the start of a window, per parity of the epoch and per rank: {epoch u32, call u32} written as one 64-bit word by
 * that rank, read here. A peer is at most one barrier ahead, so the word of the barrier just passed still stands.
 */
export const EP_ARRIVAL_STRIDE = 128;

/** How a count exchange ended. */
export const epStatus = {
  good: 0,
  timeout: 1,
  mismatch: 2,
  badChoice: 3,
  capacity: 4,
  otherCall: 5,
  /** More rows come than a layer's output holds; it can grow. */
  grow: 6,
  badPlace: 7,
  emptyRow: 8,
} as const;

/** Device memory, one per handle: what dispatch and combine kernels need of the exchange. */
export const epPlan = defineLayout('EpPlan', {
  status: 'u32',
  numRecvTokens: 'u32',
  /** Row, at each rank of the group, where this rank's tokens begin. */
  firstRow: { of: 'u32', count: EP_MAX_GROUP_RANKS },
  /** Tokens of this rank that cross to each other host, by way; tokens of each source that come through this rank, by slot. */
  sentTokens: { of: 'u32', count: EP_MAX_GROUP_RANKS },
  servedTokens: { of: 'u32', count: EP_MAX_GROUP_RANKS },
});

/**
 * Mapped host memory; `sequence` is stored last and says for which dispatch the rest is. Counts per expert follow. The
 * first dispatch that failed stays named until the host has taken note: `failedSequence`, 0 for none.
 */
export const epHostPlan = defineLayout('EpHostPlan', {
  sequence: 'u32',
  failedSequence: 'u32',
  status: 'u32',
  /** Word of the record that differs, flat index of a bad choice, or rows beyond a bound. */
  detail: 'u32',
  /** The rank that differs, passed the bad choice, or would receive too much. */
  culprit: 'u32',
  /** Columns of the topkIdx with the bad choice, or the rank's bound. */
  extent: 'u32',
  numRecvTokens: 'u32',
  rankPrefixMatrix: { of: 'u32', count: EP_MAX_GROUP_RANKS * EP_MAX_GROUP_RANKS },
  /** Tokens of this rank that go to each other host; across hosts alone. */
  wayTokens: { of: 'u32', count: EP_MAX_WAYS },
});

const peers = { of: 'ptr', count: EP_MAX_RANKS } as const;

/** Device memory, one per collective object, zero at first: where kernels of graphs, which are given no epochs, count on. */
export const epLastEpoch = defineLayout('EpLastEpoch', {
  /** Epoch of the object's last barrier here, which each kernel leaves. */
  number: 'u32',
  /** 1 once a kernel left before its last barrier. Peers may be elsewhere than `number`: kernels of graphs leave at once. */
  failed: 'u32',
});

/** Device memory, one per buffer, zero at first: where the blocks of one dispatch meet. */
export const epScratch = defineLayout('EpScratch', {
  /** Blocks that have counted; the last one takes it back to zero. */
  tickets: 'u32',
  /** Sequence number of the last dispatch whose blockRows are here, and of the last one whose plan is. */
  numbered: 'u32',
  planned: 'u32',
  /** Complement of the flat index of the first bad choice; 0 for none. */
  lastBadCell: 'u32',
  /** Tokens of each block for each destination, a rank or a way; then its first row there. */
  blockRows: { of: 'u32', count: EP_MAX_BLOCKS * EP_MAX_GROUP_RANKS },
  experts: { of: 'u32', count: EP_MAX_EXPERTS },
});

export const epLayoutArguments = defineLayout('EpLayoutArguments', {
  topk: 'ptr',
  isTokenInRank: 'ptr',
  numTokensPerRank: 'ptr',
  numTokensPerExpert: 'ptr',
  ranks: 'u32',
  tokens: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  experts: 'u32',
});

export const epDispatchArguments = defineLayout('EpDispatchArguments', {
  peers,
  x: 'ptr',
  scales: 'ptr',
  topk: 'ptr',
  weights: 'ptr',
  /** Marks [T, groupRanks] and counts per expert that stand in for `topk`. */
  membership: 'ptr',
  givenExperts: 'ptr',
  /** i32 [T, groupRanks + ways]: the row in this rank's numbering, or the place among what goes to that host. */
  rowTable: 'ptr',
  plan: 'ptr',
  /** Memory for the received token indices beyond the next dispatch; null for a replay. */
  recvSource: 'ptr',
  scratch: 'ptr',
  hostPlan: 'ptr',
  hostExperts: 'ptr',
  counter: 'ptr',
  /** EpLastEpoch */
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  exchangeOffset: 'u64',
  rowsOffset: 'u64',
  scalesOffset: 'u64',
  topkOffset: 'u64',
  weightsOffset: 'u64',
  sourceOffset: 'u64',
  /** EpNetwork; null in a group on one host. */
  network: 'ptr',
  /** i32 [served, maxTokens, ranks]: rows that tokens of other hosts have at this host's ranks. Of the handle. */
  forwardPlaces: 'ptr',
  /** Ranks of this host, and this one's index there. */
  ranks: 'u32',
  rank: 'u32',
  /** The same in the group, over all hosts. */
  groupRanks: 'u32',
  groupRank: 'u32',
  hosts: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  scaleBytes: 'u32',
  topkColumns: 'u32',
  indexBytes: 'u32',
  experts: 'u32',
  expertsPerRank: 'u32',
  recordWords: 'u32',
  /** 1: counts and exchanges; 0: the replay of a handle. */
  counts: 'u32',
  /** Number of a dispatch that counts; 0: the one after the last, which EpScratch tells. */
  sequence: 'u32',
  /** The closing barrier's is the one after it. 0: the one after `lastEpoch`, for kernels of a graph. */
  openingEpoch: 'u32',
  openingCall: 'u32',
  closingCall: 'u32',
  /** Rows of the result when it has a tail; 0 for the exact size. */
  worstRows: 'u32',
  /** Most bytes of a part of a row; a warp has two in shared memory. */
  stageBytes: 'u32',
  /** Warps of a block that move rows; the others write what goes with them. */
  rowWarps: 'u32',
});

export const epCombineArguments = defineLayout('EpCombineArguments', {
  peers,
  out: 'ptr',
  bias0: 'ptr',
  bias1: 'ptr',
  outWeights: 'ptr',
  rowTable: 'ptr',
  plan: 'ptr',
  counter: 'ptr',
  lastEpoch: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  rowsOffset: 'u64',
  weightsOffset: 'u64',
  /** The same as in EpDispatchArguments. */
  network: 'ptr',
  forwardPlaces: 'ptr',
  ranks: 'u32',
  rank: 'u32',
  tokens: 'u32',
  rowBytes: 'u32',
  /** Bytes of each of a warp's two stages, which hold one part of every row of a token. */
  stageBytes: 'u32',
  /** Bytes for a part of the sum. */
  partBytes: 'u32',
  topkColumns: 'u32',
  openingEpoch: 'u32',
  openingCall: 'u32',
  closingCall: 'u32',
});
