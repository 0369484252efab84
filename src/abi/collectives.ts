// What the CUDA kernels of Communicator and SparseAllReduce take, and what ranks tell each other in their windows.
import { EP_MAX_RANKS } from './ep.ts';
import { defineLayout } from './layout.ts';

/** Ranks of a CUDA Communicator at most. */
export const COLLECTIVE_MAX_RANKS = EP_MAX_RANKS;
/** Most ranks of a collective on several hosts, which the host moves step by step. */
export const COLLECTIVE_MAX_RANKS_ACROSS_HOSTS = 128;
/** Blocks of a kernel at most: those of the same number at all ranks work together, and no others meet. */
export const COLLECTIVE_MAX_BLOCKS = 32;
/** Registered allocations at most, counted from 1; 0 is none. */
export const COLLECTIVE_MAX_REGISTRATIONS = 64;
/** Messages of a launch at most, and of these from one rank to another. */
const COLLECTIVE_MAX_MESSAGES = 64;
export const COLLECTIVE_POSTS = 4;

/** Bits of the count of elements in a call word, above which stands what is computed. A double holds the whole. */
export const COLLECTIVE_COUNT_BITS = 36;
/** Bits of the bytes in a message word, above which stands the number of the dtype. */
export const COLLECTIVE_BYTES_BITS = 40;

/** What a kernel moves; the numbers are its own. */
export const collectiveShapes = {
  barrier: 0,
  broadcast: 1,
  reduce: 2,
  allGather: 3,
  reduceScatter: 4,
  allReduce: 5,
  allToAll: 6,
  allToAllv: 7,
} as const;

/** Why a rank's kernels can go no further. The first one that a rank meets stays. */
export const collectiveFailures = { none: 0, expired: 1, otherCall: 2, otherCounts: 3, otherMessage: 4 } as const;

/** One per (receiver, source) in the receiver's window, written by the source alone: its failure, as all ranks tell it. */
export const collectiveFailure = defineLayout(
  'CollectiveFailure',
  {
    /** One of collectiveFailures. Stored last. */
    kind: 'u32',
    /** The rank that met it, and whom it waited for or compared itself with. */
    reporter: 'u32',
    culprit: 'u32',
    detail: 'u32',
    expected: 'u64',
    seen: 'u64',
  },
  64,
);

/**
 * One per (receiver, parity of the step, block, source) in the receiver's window: what the source calls, at the first step
 * of a call. Offsets and counts are in bytes; those after `word` are told only where a call has an opening step.
 */
export const collectiveRecord = defineLayout(
  'CollectiveRecord',
  {
    word: 'u64',
    inputOffset: 'u64',
    outputOffset: 'u64',
    inputId: 'u32',
    outputId: 'u32',
    /** Counts of allToAllv: to and from the receiver, where the latter begins in the source's output, and the most to any rank. */
    sendBytes: 'u64',
    recvBytes: 'u64',
    recvOffset: 'u64',
    mostBytes: 'u64',
  },
  64,
);

/** One per block in device memory, zero at first. */
export const collectiveBlock = defineLayout(
  'CollectiveBlock',
  {
    /** How many steps it has made. A kernel that a graph replays counts on. */
    steps: 'u32',
    /** 1: it left a call early. It makes no more, because a late rank may still read what it told and put in the last step. */
    failed: 'u32',
  },
  32,
);

const peers = { of: 'ptr', count: COLLECTIVE_MAX_RANKS } as const;
const bytesOfRanks = { of: 'u64', count: COLLECTIVE_MAX_RANKS } as const;

/** Offsets whose names begin with `window` are from the start of a window. */
export const collectiveArguments = defineLayout('CollectiveArguments', {
  peers,
  /** CollectiveBlock of each block. */
  blocks: 'ptr',
  /** [id][rank]: where registered allocations are mapped in this process. */
  registrations: 'ptr',
  input: 'ptr',
  output: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  word: 'u64',
  /** Bytes that the call's count stands for. */
  bytes: 'u64',
  inputOffset: 'u64',
  outputOffset: 'u64',
  sendBytes: bytesOfRanks,
  sendOffsets: bytesOfRanks,
  recvBytes: bytesOfRanks,
  recvOffsets: bytesOfRanks,
  windowArrivals: 'u64',
  windowRecords: 'u64',
  windowSlots: 'u64',
  /** Bytes of a slot of a block. */
  slotBytes: 'u32',
  inputId: 'u32',
  outputId: 'u32',
  ranks: 'u32',
  rank: 'u32',
  root: 'u32',
  /** One of collectiveShapes. */
  shape: 'u32',
  /** One of reductionFormats, and one of reductions. */
  format: 'u32',
  reduction: 'u32',
  elementBytes: 'u32',
  dtype: 'u32',
  /** What ranks compare of `word` at the first step. */
  signature: 'u32',
  /** 1: ranks first tell where their tensors are. */
  opens: 'u32',
  /** 1: a reduction of all goes in two phases. */
  twoPhases: 'u32',
});

/** Flags of messages between two ranks, one per (owner of the window, lane, other rank). Counters wrap. */
export const messageFlags = defineLayout(
  'MessageFlags',
  {
    /** Messages that the other rank has posted, to be received by it from the owner. */
    posted: 'u32',
    /** Chunks of the owner's that it has taken. */
    taken: 'u32',
    /** Chunks and whole messages that it has put here. */
    arrived: 'u32',
    done: 'u32',
  },
  64,
);

/** One per (sender's window, lane, receiver, number modulo COLLECTIVE_POSTS): what the receiver expects. */
export const messagePost = defineLayout('MessagePost', { word: 'u64', offset: 'u64', id: 'u32' }, 32);

/** One per block of the messages' kernel in device memory, zero at first: messages and chunks to or from each rank. */
export const messageBlock = defineLayout('MessageBlock', {
  messages: { of: 'u32', count: COLLECTIVE_MAX_RANKS },
  chunks: { of: 'u32', count: COLLECTIVE_MAX_RANKS },
  /** 1: it left a launch early, and takes part in no more. */
  failed: 'u32',
});

/** What becomes of a message here. */
export const messageDirections = { send: 0, receive: 1, copy: 2 } as const;

const messages = <Of extends 'u32' | 'u64' | 'ptr'>(of: Of): { readonly of: Of; readonly count: number } => ({
  of,
  count: COLLECTIVE_MAX_MESSAGES,
});

/** Blocks of even numbers send and those of odd numbers receive; block 2 l and block 2 l + 1 are lane l. */
export const messageArguments = defineLayout('MessageArguments', {
  peers,
  /** MessageBlock of each block. */
  blocks: 'ptr',
  registrations: 'ptr',
  trap: 'ptr',
  timeoutNs: 'u64',
  windowFlags: 'u64',
  windowPosts: 'u64',
  windowChunks: 'u64',
  /** One for each message. */
  addresses: messages('ptr'),
  /** Offset of a receive in its registration, or the address where a copy goes. */
  offsets: messages('u64'),
  /** Bytes, and the number of the dtype. */
  words: messages('u64'),
  ids: messages('u32'),
  /** One of messageDirections, and the peer 8 bits higher. In the order in which a lane does them. */
  kinds: messages('u32'),
  count: 'u32',
  ranks: 'u32',
  rank: 'u32',
  chunkBytes: 'u32',
  /** A message has a lane for each so many bytes, at most so many. */
  laneBytes: 'u32',
  maxLanes: 'u32',
});

/** One reduction of a Communicator across hosts. */
export const runArguments = defineLayout('CollectiveRunArguments', {
  /** Addresses in the order of the ranks: here, at ranks of this host, or in memory of the host. */
  sources: { of: 'ptr', count: COLLECTIVE_MAX_RANKS_ACROSS_HOSTS },
  target: 'ptr',
  bytes: 'u64',
  count: 'u32',
  /** One of reductions. */
  reduction: 'u32',
});

// The arguments of the kernels in kernels/cuda/sparse-blocks.cu and sparse-direct.cu.

/** Blocks that one thread block numbers, a thread each. */
export const SPARSE_GROUP_BLOCKS = 1024;
/** Places of a lane, one behind the other, that one thread looks through for the lane's next block. */
export const SPARSE_SEGMENT_PLACES = 64;
/** What a block that does not count has in place of its number among those that do. */
export const SPARSE_NO_BLOCK = 0xffffffff;

export const sparseMarkArguments = defineLayout('SparseMarkArguments', {
  input: 'ptr',
  /** Blocks that do not count become zero there; may be `input`. */
  output: 'ptr',
  /** u8 by block: 0 if it counts, else 1. */
  marks: 'ptr',
  /** Bytes of the tensor. */
  bytes: 'u64',
  blocks: 'u32',
  blockBytes: 'u32',
  /** One of `reductionFormats`. */
  format: 'u32',
  /** What an element's magnitude must be above: bits of an f32, or an integer. */
  limit: 'u32',
  /** Both addresses are multiples of 16. */
  isAligned: 'u32',
});

export const sparseIndexArguments = defineLayout('SparseIndexArguments', {
  marks: 'ptr',
  /** u32 by group of blocks: how many count. */
  counts: 'ptr',
  /** u32 by segment and lane: the first block there that counts, or `infinity` and more. */
  firsts: 'ptr',
  /** u32: the blocks that count, in their order. */
  list: 'ptr',
  /** u32 by block: its number in the list; SPARSE_NO_BLOCK of those that do not count. */
  numbers: 'ptr',
  /** u32 by block: the next block behind it in its lane that counts, or `infinity` + its lane. */
  nexts: 'ptr',
  /** u32: how many count. */
  found: 'ptr',
  blocks: 'u32',
  /** Blocks from one block of a lane to its next one. */
  stride: 'u32',
  infinity: 'u32',
  /** Groups of SPARSE_GROUP_BLOCKS blocks, and segments of SPARSE_SEGMENT_PLACES places of all lanes. */
  groups: 'u32',
  segments: 'u32',
});

/** Between the tensor and packed blocks, one behind the other. */
export const sparseMoveArguments = defineLayout('SparseMoveArguments', {
  tensor: 'ptr',
  packed: 'ptr',
  /** u32: which blocks of the tensor they are. */
  list: 'ptr',
  /** Bytes of the tensor, whose last block may be shorter; what a packed one has behind that stays as it is. */
  bytes: 'u64',
  count: 'u32',
  blockBytes: 'u32',
  /** Bytes that both addresses are multiples of: 16, 4 or 2. */
  unit: 'u32',
});

/** It comes behind what the stream did before. */
export const sparseTellArguments = defineLayout('SparseTellArguments', {
  /** i32. */
  flag: 'ptr',
  parts: 'u32',
});

/** What the mark kernel is measured against. */
export const benchReadArguments = defineLayout('BenchReadArguments', {
  input: 'ptr',
  bytes: 'u64',
  /** u32; written only if all words together are one that they are not. */
  sink: 'ptr',
});

const ofRanks = { of: 'ptr', count: COLLECTIVE_MAX_RANKS } as const;

/** Blocks of a piece of the tensor into this rank's window. */
export const sparseShareArguments = defineLayout('SparseShareArguments', {
  /** Start of the piece, there and here; u8 by block of the piece. */
  tensor: 'ptr',
  shared: 'ptr',
  marks: 'ptr',
  /** Bytes of the piece. */
  bytes: 'u64',
  blocks: 'u32',
  blockBytes: 'u32',
});

/** The sums of a piece, of what all ranks have in their windows. */
export const sparseSumArguments = defineLayout('SparseSumArguments', {
  /** Blocks of the piece, and marks, of each rank as this process maps them. */
  shared: ofRanks,
  marks: ofRanks,
  /** Start of the piece. */
  output: 'ptr',
  /** u32: blocks that count at this rank, and at any; added to. */
  found: 'ptr',
  bytes: 'u64',
  blocks: 'u32',
  blockBytes: 'u32',
  ranks: 'u32',
  rank: 'u32',
});
