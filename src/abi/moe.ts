// What the CUDA kernels of a MoE block's experts take.
import { defineLayout } from './layout.ts';

/** Words that one launch of moeStoreWords carries: its arguments fit the 4 KiB that every driver allows. */
export const MOE_STORE_WORDS = 960;
/** Rows of one tile of the grouped product; the host counts tiles, the kernel computes them. */
export const GROUPED_TILE_ROWS = 64;
/** Columns of one tile. */
export const GROUPED_TILE_COLUMNS = 128;

export const moeStoreWordsArguments = defineLayout('MoeStoreWordsArguments', {
  to: 'ptr',
  count: 'u32',
  words: { of: 'u32', count: MOE_STORE_WORDS },
});

export const moeListChoicesArguments = defineLayout('MoeListChoicesArguments', {
  /** [choices] local expert ids, -1 for none. */
  topk: 'ptr',
  /** [experts + 1] first slot of each expert. */
  starts: 'ptr',
  /** [choices] the slot of each choice, -1 for none. */
  slots: 'ptr',
  choices: 'u32',
  experts: 'u32',
  indexBytes: 'u32',
});

export const moeGatherRowsArguments = defineLayout('MoeGatherRowsArguments', {
  /** [rows, rowBytes] */
  x: 'ptr',
  /** [slots, rowBytes] */
  out: 'ptr',
  /** [rows, columns] */
  slots: 'ptr',
  rows: 'u32',
  columns: 'u32',
  rowBytes: 'u32',
});

export const moeSwigluArguments = defineLayout('MoeSwigluArguments', {
  /** f32 [rows, 2 * width] */
  x: 'ptr',
  /** bf16 [rows, width] */
  out: 'ptr',
  rows: 'u32',
  width: 'u32',
});

export const moeSumRowsArguments = defineLayout('MoeSumRowsArguments', {
  /** f32 [slots, hidden] */
  y: 'ptr',
  /** [rows, columns], or 0: row r stands in slot r. */
  slots: 'ptr',
  /** f32 [rows, columns], or 0 for ones. */
  weights: 'ptr',
  /** bf16 [rows, hidden] */
  out: 'ptr',
  rows: 'u32',
  columns: 'u32',
  hidden: 'u32',
});

export const groupedProductArguments = defineLayout('GroupedProductArguments', {
  /** bf16 [rows, k], the rows of group 0 first. */
  x: 'ptr',
  /** bf16 [groups, n, k] */
  w: 'ptr',
  /** f32 [rows, n] */
  out: 'ptr',
  /** [groups + 1] first row of each group. */
  starts: 'ptr',
  /** [groups + 1] first tile of each group. */
  tileStarts: 'ptr',
  groups: 'u32',
  n: 'u32',
  k: 'u32',
});
