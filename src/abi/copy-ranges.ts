// What the kernel takes that copies ranges between memory of GPUs: rows of a table.
import { defineLayout } from './layout.ts';

/** Threads of a thread block. */
export const COPY_RANGES_THREADS = 1024;

/** Ranges are cut into pieces of this many bytes, a multiple of 16. */
export const COPY_PIECE_BYTES: number = 16 << 10;

/** Ranges of `bytes` bytes each, so far apart on both sides. */
export const copyRow = defineLayout(
  'CopyRow',
  {
    from: 'ptr',
    to: 'ptr',
    fromStride: 'u64',
    toStride: 'u64',
    bytes: 'u64',
    /** Pieces of the rows before. */
    firstPiece: 'u32',
    /** Pieces of one range. */
    piecesOfRange: 'u32',
  },
  16,
);

export const copyRangesArguments = defineLayout('CopyRangesArguments', {
  /** CopyRow[count] */
  rows: 'ptr',
  count: 'u32',
  /** Pieces of all rows. */
  pieces: 'u32',
  /** How many pieces a warp takes at a time, at most 32. */
  piecesOfWarp: 'u32',
});
