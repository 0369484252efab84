// The arguments of the kernels in kernels/cuda/sparse-blocks.cu and sparse-direct.cu.
import { COLLECTIVE_MAX_RANKS } from './cuda-collectives.ts';
import { defineLayout } from './layout.ts';

/** Blocks that one thread block numbers, a thread each. */
export const SPARSE_GROUP_BLOCKS = 1024;
/** Places of a lane, one behind the other, that one thread looks through for the lane's next block. */
export const SPARSE_SEGMENT_PLACES = 64;
/** In place of its number among those that count, of a block that does not. */
export const SPARSE_NO_BLOCK = 0xffffffff;

export const sparseMarkArguments = defineLayout('SparseMarkArguments', {
  input: 'ptr',
  /** Blocks that do not count become zero there; may be `input`. */
  output: 'ptr',
  /** u8 by block: 0 if it counts, else 1. */
  marks: 'ptr',
  /** Of the tensor. */
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
  /** From one block of a lane to its next one. */
  stride: 'u32',
  infinity: 'u32',
  /** Of SPARSE_GROUP_BLOCKS blocks; of SPARSE_SEGMENT_PLACES places of all lanes. */
  groups: 'u32',
  segments: 'u32',
});

/** Between the tensor and packed blocks, one behind the other. */
export const sparseMoveArguments = defineLayout('SparseMoveArguments', {
  tensor: 'ptr',
  packed: 'ptr',
  /** u32: which blocks of the tensor they are. */
  list: 'ptr',
  /** Of the tensor, whose last block may be shorter; what a packed one has behind that stays as it is. */
  bytes: 'u64',
  count: 'u32',
  blockBytes: 'u32',
  /** Bytes that both addresses are multiples of: 16, 4 or 2. */
  unit: 'u32',
});

/** Behind what the stream did before. */
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
  /** Where the piece begins, there and here; u8 by block of the piece. */
  tensor: 'ptr',
  shared: 'ptr',
  marks: 'ptr',
  /** Of the piece. */
  bytes: 'u64',
  blocks: 'u32',
  blockBytes: 'u32',
});

/** The sums of a piece, of what all ranks have in their windows. */
export const sparseSumArguments = defineLayout('SparseSumArguments', {
  /** By rank, as this process maps them: blocks of the piece, and marks. */
  shared: ofRanks,
  marks: ofRanks,
  /** Where the piece begins. */
  output: 'ptr',
  /** u32: blocks that count at this rank, and at any; added to. */
  found: 'ptr',
  bytes: 'u64',
  blocks: 'u32',
  blockBytes: 'u32',
  ranks: 'u32',
  rank: 'u32',
});
