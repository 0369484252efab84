// A block of descriptors: where the fragments of a bounce buffer belong, a header first, then one descriptor each.
import { defineLayout, wordOffsets } from './layout.ts';

/** What a producer may put into one block. */
export const MAX_BLOCK_DESCRIPTORS = 2048;

/** A pack reads at the destination offset and writes at the source offset: the sides swap their roles. */
export const fragmentDescriptor = defineLayout(
  'FragmentDescriptor',
  {
    /** Offset in the bounce buffer. */
    sourceOffset: 'u32',
    length: 'u32',
    /** Offset in the destination. */
    destinationOffset: 'u64',
  },
  16,
);

/** What stands in front of the descriptors, so that a block may be copied only as far as it is filled. */
export const descriptorBlockHeader = defineLayout('DescriptorBlockHeader', {
  count: 'u32',
  /** 1: kernels move several fragments per warp; 0: one at a time. Set in the blocks of a ring alone. */
  isSmall: 'u32',
  /** Sum of all lengths. */
  totalBytes: 'u64',
  bounce: 'ptr',
  destination: 'ptr',
  bounceBytes: 'u64',
  destinationBytes: 'u64',
  /** u64 that must have reached the threshold before the block is moved; 0 for none. */
  readyFlag: 'ptr',
  readyThreshold: 'u64',
});

export const blockHeaderWord = wordOffsets(descriptorBlockHeader);
export const BLOCK_HEADER_WORDS = descriptorBlockHeader.size / 4;
export const fragmentWord = wordOffsets(fragmentDescriptor);
export const FRAGMENT_WORDS = fragmentDescriptor.size / 4;

/**
 * In the slots of a persistent launcher's ring, in place of the sum: descriptors that a warp takes at a time, and the warp that
 * takes the first ones. Thread blocks come to a slot at different times, with different slots behind it: so that their shares
 * are the whole slot, these may depend on nothing else.
 */
export const slotShareWord = {
  groupDescriptors: blockHeaderWord.totalBytes,
  firstWarp: blockHeaderWord.totalBytes + 1,
} as const;

/** What a slot of a launcher's ring holds: long fragments are cut there, so that all warps have work. */
export const RING_DESCRIPTORS = 2 * MAX_BLOCK_DESCRIPTORS;
export const RING_SLOT_BYTES = descriptorBlockHeader.size + RING_DESCRIPTORS * fragmentDescriptor.size;
export const MAX_RING_SLOTS = 1024;

/** What the kernels of kernels/cuda/unpack.cu take: a run of slots of a ring. */
export const moveFragmentsArguments = defineLayout('MoveFragmentsArguments', {
  ring: 'ptr',
  slots: 'u32',
  /** First slot of the run, which may go on at the beginning of the ring. */
  firstSlot: 'u32',
  blocks: 'u32',
  /** Descriptors that one warp takes at a time, at most 32; and how many of these groups the largest block has. */
  groupDescriptors: 'u32',
  groupsPerBlock: 'u32',
  /** 1 if a block has a ready flag. */
  waits: 'u32',
  trap: 'ptr',
  /** A u32 for each slot: set to 1 when its ready flag did not come in time. In mapped host memory. */
  missed: 'ptr',
  timeoutNs: 'u64',
});

/** Whether the kernel of a persistent launcher runs: it says that it is about to leave, then looks for work once more. */
export const persistentStates = { left: 0, runs: 1, leaves: 2 } as const;

/** What the host and a persistent kernel share, in mapped host memory. */
export const persistentControl = defineLayout(
  'PersistentControl',
  {
    /** Blocks posted so far; wraps. Written by the host. */
    posted: 'u32',
    /** Set to 1 by the host: the kernel leaves when all posts are done. */
    mustStop: 'u32',
    /** One of persistentStates. */
    state: 'u32',
    /** Posts taken when the kernel left. */
    taken: 'u32',
  },
  64,
);

/** What the blocks of a persistent kernel share, in device memory; a u32 for each slot follows: how many have done it. */
export const persistentShared = defineLayout(
  'PersistentShared',
  {
    posted: 'u32',
    /** Generation of the kernel that leaves. */
    leaving: 'u32',
    /** Blocks of the kernel that have begun, less those of full kernels: the first one leads. */
    begun: 'u32',
  },
  64,
);

/** What the kernels of kernels/cuda/unpack-persistent.cu take. */
export const persistentArguments = defineLayout('PersistentArguments', {
  ring: 'ptr',
  /** Control of this kernel: the one behind it has another. */
  control: 'ptr',
  /** A u32 for each slot: its last post that is done. In mapped host memory. */
  done: 'ptr',
  shared: 'ptr',
  trap: 'ptr',
  /** A u32 for each slot: set to 1 when its ready flag did not come in time. In mapped host memory. */
  missed: 'ptr',
  timeoutNs: 'u64',
  /** The kernel leaves when nothing was posted for so long. */
  idleNs: 'u64',
  slots: 'u32',
  /** Slot of the first post that is not taken. */
  firstSlot: 'u32',
  taken: 'u32',
  /** Numbers the kernels of one launcher. */
  generation: 'u32',
});

/** The place of one fragment and the one where it belongs, for the bare copy that the kernels are measured against. */
export const fragmentPair = defineLayout('FragmentPair', { from: 'ptr', to: 'ptr' }, 16);

/** What kernels/cuda/bench-unpack.cu takes: fragments of one length, a multiple of 16. */
export const benchFragmentsArguments = defineLayout('BenchFragmentsArguments', {
  /** FragmentPair[count] */
  pairs: 'ptr',
  count: 'u32',
  bytes: 'u32',
});
