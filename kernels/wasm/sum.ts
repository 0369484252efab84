// Sums rows in f32, in the order they are listed, and rounds once to their dtype, most often bf16 (nearest even; NaN
// becomes 0x7fc0). Rows of other dtypes: sum-columns.ts.
//
// Even and odd elements are summed apart (see bf16.ts).
// The sum starts from the first row, not from zero, and a single row is copied bit for bit.
import { ELEMENT_FORMAT_BF16, ELEMENT_FORMAT_F16 } from 'abi';
import { evenLanes, interleaveNumbers, interleaveToBf16, oddLanes, plainNanBf16 } from './bf16';
import { sumF16Columns, sumF32Columns } from './sum-columns';

/** Bytes of one step of the main loop: 32 values in eight accumulators. */
const STEP: usize = 64;

/**
 * Rows that lie anywhere (expanded layout) are summed in blocks of so many bytes, and each block of all rows is touched
 * first: their cache misses are then under way together, where the sums would wait for them one after another. Measured
 * a fifth faster for 5 to 8 rows; fewer need no help, more crowd each other out of the first-level cache, and rows that
 * follow one another in few streams (compact layout) are better left to the processor's own prefetching.
 */
const BLOCK: usize = 512;
const LINE: usize = 64;
const MIN_TOUCHED_ROWS = 5;
const MAX_TOUCHED_ROWS = 8;

/** Keeps the touching loads from being optimised away. */
let touched: u32 = 0;

/**
 * out[0..bytes) = the sum of `count` rows whose addresses (u32) stand at `sources`. `bytes` is a multiple of 16, `format`
 * one of elementFormats. No source is all zeros. `out` may be one of the sources. `scattered` != 0: the rows lie anywhere.
 */
export function sumRows(out: usize, sources: usize, count: i32, bytes: usize, scattered: i32, format: i32): void {
  if (count == 0) {
    memory.fill(out, 0, bytes);
    return;
  }
  if (count == 1) {
    const only = <usize>load<u32>(sources);
    if (out != only) memory.copy(out, only, bytes);
    return;
  }
  const end = sources + (<usize>count << 2);
  if (format != ELEMENT_FORMAT_BF16) {
    if (format == ELEMENT_FORMAT_F16) sumF16Columns(out, sources, end, bytes);
    else sumF32Columns(out, sources, end, bytes);
    return;
  }
  if (scattered == 0 || count < MIN_TOUCHED_ROWS || count > MAX_TOUCHED_ROWS) {
    sumColumns(out, sources, end, 0, bytes);
    return;
  }
  for (let start: usize = 0; start < bytes; start += BLOCK) {
    const stop = min(start + BLOCK, bytes);
    let lines: u32 = 0;
    for (let s = sources; s < end; s += 4) {
      const row = <usize>load<u32>(s);
      for (let at = row + start; at < row + stop; at += LINE) lines ^= load<u32>(at);
    }
    touched ^= lines;
    sumColumns(out, sources, end, start, stop);
  }
}

/** Columns from byte `start` to `stop` of sumRows, for at least two rows of bf16. */
export function sumColumns(out: usize, sources: usize, end: usize, start: usize, stop: usize): void {
  const first = <usize>load<u32>(sources);
  let column = start;
  let all = f32x4.splat(0);
  for (; column + STEP <= stop; column += STEP) {
    const p = first + column;
    const a = v128.load(p);
    const b = v128.load(p, 16);
    const c = v128.load(p, 32);
    const d = v128.load(p, 48);
    let e0 = evenLanes(a), o0 = oddLanes(a), e1 = evenLanes(b), o1 = oddLanes(b);
    let e2 = evenLanes(c), o2 = oddLanes(c), e3 = evenLanes(d), o3 = oddLanes(d);
    for (let s = sources + 4; s < end; s += 4) {
      const q = <usize>load<u32>(s) + column;
      const w = v128.load(q);
      const x = v128.load(q, 16);
      const y = v128.load(q, 32);
      const z = v128.load(q, 48);
      e0 = f32x4.add(e0, evenLanes(w));
      o0 = f32x4.add(o0, oddLanes(w));
      e1 = f32x4.add(e1, evenLanes(x));
      o1 = f32x4.add(o1, oddLanes(x));
      e2 = f32x4.add(e2, evenLanes(y));
      o2 = f32x4.add(o2, oddLanes(y));
      e3 = f32x4.add(e3, evenLanes(z));
      o3 = f32x4.add(o3, oddLanes(z));
    }
    // NaN if a lane of any step is (or if infinities meet, which only costs the look below).
    all = f32x4.add(
      all,
      f32x4.add(
        f32x4.add(f32x4.add(e0, o0), f32x4.add(e1, o1)),
        f32x4.add(f32x4.add(e2, o2), f32x4.add(e3, o3)),
      ),
    );
    v128.store(out + column, interleaveNumbers(e0, o0));
    v128.store(out + column, interleaveNumbers(e1, o1), 16);
    v128.store(out + column, interleaveNumbers(e2, o2), 32);
    v128.store(out + column, interleaveNumbers(e3, o3), 48);
  }
  // In what was written, because `out` may be one of the sources.
  if (v128.any_true(f32x4.ne(all, all))) makeNanPlain(out + start, out + column);
  for (; column < stop; column += 16) {
    const a = v128.load(first + column);
    let e = evenLanes(a), o = oddLanes(a);
    for (let s = sources + 4; s < end; s += 4) {
      const w = v128.load(<usize>load<u32>(s) + column);
      e = f32x4.add(e, evenLanes(w));
      o = f32x4.add(o, oddLanes(w));
    }
    v128.store(out + column, interleaveToBf16(e, o));
  }
}

/** Every NaN of the bf16 from `start` to `end` becomes 0x7fc0. */
export function makeNanPlain(start: usize, end: usize): void {
  for (let at = start; at < end; at += 16) v128.store(at, plainNanBf16(v128.load(at)));
}

/**
 * out[t] = bias0[t] + bias1[t] + the rows that the table names for token t, column by column (see rows.ts for tables).
 * A bias address of 0 means none. `onePerRank` != 0 takes only the first column of each rank: the others were summed
 * into that row before (sumDuplicates). `scratch` holds columns + 2 addresses.
 */
export function gatherSum(
  out: usize,
  rowBytes: usize,
  tokens: i32,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
  onePerRank: i32,
  bias0: usize,
  bias1: usize,
  scratch: usize,
  format: i32,
): void {
  for (let t = 0; t < tokens; t++) {
    const at = <usize>t * rowBytes;
    let count = 0;
    if (bias0 != 0) store<u32>(scratch + (<usize>(count++) << 2), <u32>(bias0 + at));
    if (bias1 != 0) store<u32>(scratch + (<usize>(count++) << 2), <u32>(bias1 + at));
    const firstCell = <usize>t * <usize>columns;
    count = listRows(scratch, count, columns, firstCell, rowBytes, rowTable, rankTable, bases, onePerRank);
    sumRows(out + at, scratch, count, rowBytes, rankTable == 0 ? 0 : 1, format);
  }
}

/** Adds the addresses of the rows that a token's cells name to the `count` at `list`; returns how many there are then. */
@inline
export function listRows(
  list: usize,
  count: i32,
  columns: i32,
  firstCell: usize,
  rowBytes: usize,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
  onePerRank: i32,
): i32 {
  for (let c = 0; c < columns; c++) {
    const cell = firstCell + <usize>c;
    const place = load<i32>(rowTable + (cell << 2));
    if (place < 0) continue;
    const rank = rankTable == 0 ? c : load<i32>(rankTable + (cell << 2));
    if (onePerRank != 0 && rankSeen(rankTable, firstCell, cell, rank)) continue;
    const base = <usize>load<u32>(bases + (<usize>rank << 2));
    store<u32>(list + (<usize>(count++) << 2), <u32>(base + <usize>place * rowBytes));
  }
  return count;
}

/** True when an earlier column of the token goes to the same rank. */
export function rankSeen(rankTable: usize, firstCell: usize, cell: usize, rank: i32): bool {
  for (let before = firstCell; before < cell; before++) {
    if (load<i32>(rankTable + (before << 2)) == rank) return true;
  }
  return false;
}

/**
 * Expanded layout, local combine: for every row m that is the first of its token here, sums the token's rows on this
 * rank in top-k order into row m. `duplicates` i32 [rows, k] holds, for such m, the row of each choice or -1; for any
 * other row only -1. `scratch` holds k addresses.
 */
export function sumDuplicates(
  rows: usize,
  rowBytes: usize,
  count: i32,
  k: i32,
  duplicates: usize,
  scratch: usize,
  format: i32,
): void {
  for (let m = 0; m < count; m++) {
    const list = duplicates + (<usize>(m * k) << 2);
    let sources = 0;
    for (let j = 0; j < k; j++) {
      const row = load<i32>(list + (<usize>j << 2));
      if (row >= 0) store<u32>(scratch + (<usize>(sources++) << 2), <u32>(rows + <usize>row * rowBytes));
    }
    if (sources > 1) sumRows(rows + <usize>m * rowBytes, scratch, sources, rowBytes, 1, format);
  }
}

/**
 * Expanded layout: tells every receiving rank which of its rows hold the same token. `firstBases[r]`: i32 [rows] at
 * rank r, the row of the token's first choice there; `duplicateBases[r]`: i32 [rows, k], see sumDuplicates.
 */
export function scatterDuplicates(
  tokens: i32,
  k: i32,
  rowTable: usize,
  rankTable: usize,
  firstBases: usize,
  duplicateBases: usize,
): void {
  for (let t = 0; t < tokens; t++) {
    const firstCell = <usize>t * <usize>k;
    for (let j: usize = 0; j < <usize>k; j++) {
      const row = load<i32>(rowTable + ((firstCell + j) << 2));
      if (row < 0) continue;
      const rank = load<i32>(rankTable + ((firstCell + j) << 2));
      const base = <usize>load<u32>(duplicateBases + (<usize>rank << 2));
      if (base == 0) continue;
      const list = base + (<usize>row * <usize>k << 2);
      let first = -1;
      for (let i: usize = 0; i < <usize>k; i++) {
        const here = load<i32>(rankTable + ((firstCell + i) << 2)) == rank;
        const other = here ? load<i32>(rowTable + ((firstCell + i) << 2)) : -1;
        if (first < 0) first = other;
        store<i32>(list + (i << 2), first == row ? other : -1);
      }
      store<i32>(<usize>load<u32>(firstBases + (<usize>rank << 2)) + (<usize>row << 2), first);
    }
  }
}
