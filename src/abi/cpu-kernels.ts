// What kernels on CPUs read and write besides rows: keys of packets, and what they find out about fragments.
import { defineLayout, wordOffsets } from './layout.ts';

/** The expanded key that tags the packets of one direction, as kernels/wasm/packet-tag.ts reads it. */
export const packetKey = defineLayout(
  'PacketKey',
  {
    /** NH: the key of a kilobyte, and 16 bytes more for the second pass. */
    nh: { of: 'u8', count: 1024 + 16 },
    /** Poly1305: its multiplier, of which the kernel clears the bits that must be zero. */
    poly: { of: 'u8', count: 16 },
    /** SipHash. */
    sip: { of: 'u8', count: 16 },
  },
  16,
);

// What the CPU kernels of kernels/wasm/fragment-check.ts find out about the blocks of one launch.

/** Written block after block. Addresses are those of the memory that is written: starts and ends of fragments there. */
export const fragmentCheck = defineLayout('FragmentCheck', {
  /** Sum of the lengths of the block that was checked last. */
  blockBytes: 'u64',
  totalBytes: 'u64',
  /** Start of the first fragment. */
  first: 'u64',
  least: 'u64',
  /** End of the last byte of all. */
  most: 'u64',
  /** End of the fragment before. */
  end: 'u64',
  /** The bits in which starts differ from the first, and those of lengths: the lowest is a unit of all fragments. */
  bits: 'u64',
  /** Fragments of the block that was checked last which have bytes. */
  blockFragments: 'u32',
  fragments: 'u32',
  /** The longest fragment of the block that was checked last. */
  longest: 'u32',
  /** 1 while each fragment begins behind the one before. */
  isOrdered: 'u32',
});

export const fragmentCheckWord = wordOffsets(fragmentCheck);

/** A fragment that is sorted by where it is written, in units of all fragments from the lowest on. */
export const sortedFragment = defineLayout(
  'SortedFragment',
  {
    start: 'u64',
    length: 'u32',
    /** Block and descriptor in one number. */
    name: 'u32',
  },
  16,
);

export const sortedFragmentWord = wordOffsets(sortedFragment);
