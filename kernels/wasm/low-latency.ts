// Low-latency mode: quantises rows on their way to other ranks, gives rows that came their places by expert, and adds up
// weighted rows. Tables and `bases` are those of rows.ts.
import { FP8_GROUP, LOW_LATENCY_SCALES_F32, LOW_LATENCY_SCALES_UE8M0 } from 'abi';
import { evenLanes, interleaveToBf16, oddLanes } from './bf16';
import { quantizeFp8Row } from './fp8';
import { expertAt } from './topk';

const GROUP: usize = FP8_GROUP;

export function fillBytes(address: usize, value: i32, bytes: usize): void {
  memory.fill(address, <u8>value, bytes);
}

/**
 * Quantises row t of bf16 x [tokens, columns] once (see fp8.ts) and copies it to every row that the table names for token
 * t: [tokens, ranks], one column per rank. Word w of its scales goes to `scaleBases[rank] + row * rowStride + w * wordStride`.
 * `scales`: one of lowLatencyScales. `scratch` holds 4 bytes per group, rounded up to 16 bytes, and `columns` bytes.
 */
export function scatterQuantized(
  x: usize,
  columns: i32,
  tokens: i32,
  ranks: i32,
  rowTable: usize,
  rowBases: usize,
  scaleBases: usize,
  rowStride: usize,
  wordStride: usize,
  scales: i32,
  scratch: usize,
): void {
  for (let t = 0; t < tokens; t++) {
    const row = x + (<usize>t * <usize>columns << 1);
    const table = rowTable + (<usize>t * <usize>ranks << 2);
    scatterQuantizedRow(row, columns, ranks, table, rowBases, scaleBases, rowStride, wordStride, scales, scratch);
  }
}

/** One token; a function of its own, so that the engine can switch to optimised code between tokens. */
export function scatterQuantizedRow(
  row: usize,
  columns: i32,
  ranks: i32,
  table: usize,
  rowBases: usize,
  scaleBases: usize,
  rowStride: usize,
  wordStride: usize,
  scales: i32,
  scratch: usize,
): void {
  const groups = (<usize>columns + GROUP - 1) / GROUP;
  const data = scratch + ((groups * 4 + 15) & ~15);
  let words: usize = 0;
  for (let r: usize = 0; r < <usize>ranks; r++) {
    const place = load<i32>(table + (r << 2));
    if (place < 0) continue;
    if (words == 0) {
      quantizeFp8Row(data, scratch, row, columns, scales == LOW_LATENCY_SCALES_F32 ? 0 : 1);
      words = scales == LOW_LATENCY_SCALES_UE8M0 ? packExponents(scratch, groups) : groups;
    }
    memory.copy(<usize>load<u32>(rowBases + (r << 2)) + <usize>place * <usize>columns, data, columns);
    let target = <usize>load<u32>(scaleBases + (r << 2)) + <usize>place * rowStride;
    for (let w: usize = 0; w < words; w++, target += wordStride) store<u32>(target, load<u32>(scratch + (w << 2)));
  }
}

/** Powers of two as f32 to their exponents, four to a word, in place. Returns the words. */
function packExponents(scales: usize, groups: usize): usize {
  const words = (groups + 3) >> 2;
  for (let w: usize = 0; w < words; w++) {
    let word: u32 = 0;
    for (let i: usize = 0; i < 4 && w * 4 + i < groups; i++) {
      word |= (load<u32>(scales + ((w * 4 + i) << 2)) >> 23) << (<u32>i << 3);
    }
    store<u32>(scales + (w << 2), word);
  }
  return words;
}

/**
 * Rows that one source sent, one per token, to a row of each of the token's experts: row `next[expert]++` of that expert's
 * `capacity` rows, or nowhere if it has no more. Choices of one expert by one token share its row. `topk` [count, k] has local expert ids, -1 for experts of other ranks.
 * `scales` [count, words] go to outScales [experts, words, capacity]. outTokens [experts, capacity]: the row's token at the
 * source. rowOf i32 [count, k]: expert * capacity + row of each choice, -1 where there is none.
 */
export function placeRows(
  rows: usize,
  rowBytes: usize,
  scales: usize,
  words: usize,
  tokens: usize,
  topk: usize,
  indexBytes: i32,
  count: i32,
  k: i32,
  capacity: i32,
  next: usize,
  outRows: usize,
  outScales: usize,
  outTokens: usize,
  rowOf: usize,
): void {
  const wide = indexBytes == 8;
  let cell: usize = 0;
  for (let i: usize = 0; i < <usize>count; i++) {
    const row = rows + i * rowBytes;
    for (let j = 0; j < k; j++, cell++) {
      const expert = expertAt(topk, wide, cell);
      let place = -1;
      const same = expert >= 0 ? earlierChoice(topk, wide, cell, j) : cell;
      if (same != cell) {
        place = load<i32>(rowOf + (same << 2));
      } else if (expert >= 0) {
        const counter = next + (<usize>expert << 2);
        const at = load<i32>(counter);
        store<i32>(counter, at + 1);
        if (at < capacity) {
          place = expert * capacity + at;
          memory.copy(outRows + <usize>place * rowBytes, row, rowBytes);
          store<i32>(outTokens + (<usize>place << 2), load<i32>(tokens + (i << 2)));
          const target = outScales + ((<usize>expert * words * <usize>capacity + <usize>at) << 2);
          for (let w: usize = 0; w < words; w++) {
            store<u32>(target + ((w * <usize>capacity) << 2), load<u32>(scales + ((i * words + w) << 2)));
          }
        }
      }
      store<i32>(rowOf + (cell << 2), place);
    }
  }
}

/** The cell of the token's first choice of the expert at `cell`, its choice j: `cell` itself but where it repeats one. */
@inline
function earlierChoice(topk: usize, wide: bool, cell: usize, j: i32): usize {
  const expert = expertAt(topk, wide, cell);
  for (let first = cell - <usize>j; first < cell; first++) {
    if (expertAt(topk, wide, first) == expert) return first;
  }
  return cell;
}

/**
 * When all sources are placed: counts i32 [experts] of rows; dropped i32 [experts], rows without a place; ranges
 * i32 [experts, sources, 2], first row and rows of each source; tokens i32 [experts, capacity], whose tail becomes -1.
 * `first` i32 [sources, experts]: `next` of placeRows before each source; `next` i32 [experts]: after the last one.
 */
export function closePlaces(
  first: usize,
  next: usize,
  sources: i32,
  experts: i32,
  capacity: i32,
  counts: usize,
  dropped: usize,
  ranges: usize,
  tokens: usize,
): i32 {
  let lost = 0;
  for (let e: usize = 0; e < <usize>experts; e++) {
    const all = load<i32>(next + (e << 2));
    const count = min(all, capacity);
    store<i32>(counts + (e << 2), count);
    store<i32>(dropped + (e << 2), all - count);
    lost += all - count;
    for (let s: usize = 0; s < <usize>sources; s++) {
      const begin = min(load<i32>(first + ((s * <usize>experts + e) << 2)), capacity);
      const isLast = s + 1 == <usize>sources;
      const end = isLast ? count : min(load<i32>(first + (((s + 1) * <usize>experts + e) << 2)), capacity);
      const range = ranges + ((e * <usize>sources + s) << 3);
      store<i32>(range, begin);
      store<i32>(range, end - begin, 4);
    }
    const tail = tokens + ((e * <usize>capacity + <usize>count) << 2);
    memory.fill(tail, 0xff, <usize>(capacity - count) << 2);
  }
  return lost;
}

/**
 * Where the rows of this rank's choices, k of each token, lie at their experts' ranks: rowTable [tokens, k] = local expert *
 * capacity + nextRow[expert]++, -1 for no expert and for a row that had no place; rankTable [tokens, k] = the expert's rank.
 */
export function choiceRows(
  topk: usize,
  indexBytes: i32,
  tokens: i32,
  k: i32,
  expertsPerRank: i32,
  capacity: i32,
  nextRow: usize,
  rowTable: usize,
  rankTable: usize,
): void {
  const wide = indexBytes == 8;
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    for (let j = 0; j < k; j++, cell++) {
      const expert = expertAt(topk, wide, cell);
      let place = -1;
      let rank = -1;
      if (expert >= 0) {
        rank = expert / expertsPerRank;
        const same = earlierChoice(topk, wide, cell, j);
        if (same != cell) {
          place = load<i32>(rowTable + (same << 2));
        } else {
          const counter = nextRow + (<usize>expert << 2);
          const at = load<i32>(counter);
          store<i32>(counter, at + 1);
          if (at < capacity) place = (expert - rank * expertsPerRank) * capacity + at;
        }
      }
      store<i32>(rowTable + (cell << 2), place);
      store<i32>(rankTable + (cell << 2), rank);
    }
  }
}

/**
 * out[t] = bf16(sum over j of weights[t, j] * the row that the tables name for (t, j)): products and sums in f32, in the
 * order of j, starting from the first product; zeros where there is none. A rank table at 0: all rows are of rank 0 of
 * `bases`. Rows are bf16, rowBytes a multiple of 16. `scratch` holds k addresses and weights.
 */
export function sumWeightedRows(
  out: usize,
  rowBytes: usize,
  tokens: i32,
  k: i32,
  rowTable: usize,
  rankTable: usize,
  weights: usize,
  bases: usize,
  scratch: usize,
): void {
  for (let t = 0; t < tokens; t++, out += rowBytes) {
    const count = listWeighted(<usize>t * <usize>k, k, rowBytes, rowTable, rankTable, weights, bases, scratch);
    weightedSum(out, scratch, count, rowBytes);
  }
}

/** The same sums as f32, twice the bytes. */
export function sumWeightedRowsF32(
  out: usize,
  rowBytes: usize,
  tokens: i32,
  k: i32,
  rowTable: usize,
  rankTable: usize,
  weights: usize,
  bases: usize,
  scratch: usize,
): void {
  for (let t = 0; t < tokens; t++, out += rowBytes << 1) {
    const count = listWeighted(<usize>t * <usize>k, k, rowBytes, rowTable, rankTable, weights, bases, scratch);
    weightedNumbers(out, scratch, count, rowBytes);
  }
}

/** Puts the address and the weight of each row of the token whose first choice is at `cell` to `list`; returns their number. */
@inline
function listWeighted(
  cell: usize,
  k: i32,
  rowBytes: usize,
  rowTable: usize,
  rankTable: usize,
  weights: usize,
  bases: usize,
  list: usize,
): i32 {
  let count = 0;
  for (const end = cell + <usize>k; cell < end; cell++) {
    const place = load<i32>(rowTable + (cell << 2));
    if (place < 0) continue;
    const rank = rankTable == 0 ? 0 : load<i32>(rankTable + (cell << 2));
    const row = <usize>load<u32>(bases + (<usize>rank << 2)) + <usize>place * rowBytes;
    store<u32>(list + (<usize>count << 3), <u32>row);
    store<f32>(list + (<usize>count << 3), load<f32>(weights + (cell << 2)), 4);
    count++;
  }
  return count;
}

/** Rows are touched in blocks before they are summed; see sum.ts, of whose main loop this is the weighted one. */
const BLOCK: usize = 512;
const LINE: usize = 64;
const MIN_TOUCHED_ROWS = 3;

/** Keeps the touching loads from being optimised away. */
let touchedLines: u32 = 0;

/** One row of sumWeightedRows, from the pairs of address and weight at `list`. */
export function weightedSum(out: usize, list: usize, count: i32, bytes: usize): void {
  if (count == 0) {
    memory.fill(out, 0, bytes);
    return;
  }
  const end = list + (<usize>count << 3);
  if (count < MIN_TOUCHED_ROWS) {
    weightedColumns(out, list, end, 0, bytes);
    return;
  }
  for (let start: usize = 0; start < bytes; start += BLOCK) {
    const stop = min(start + BLOCK, bytes);
    let lines: u32 = 0;
    for (let pair = list; pair < end; pair += 8) {
      const row = <usize>load<u32>(pair);
      for (let at = row + start; at < row + stop; at += LINE) lines ^= load<u32>(at);
    }
    touchedLines ^= lines;
    weightedColumns(out, list, end, start, stop);
  }
}

/** Columns from byte `start` to `stop` of a weighted sum of at least one row. */
export function weightedColumns(out: usize, list: usize, end: usize, start: usize, stop: usize): void {
  const first = <usize>load<u32>(list);
  const factor = v128.load32_splat(list, 4);
  let column = start;
  for (; column + 32 <= stop; column += 32) {
    const a = v128.load(first + column), b = v128.load(first + column, 16);
    let e0 = f32x4.mul(evenLanes(a), factor), o0 = f32x4.mul(oddLanes(a), factor);
    let e1 = f32x4.mul(evenLanes(b), factor), o1 = f32x4.mul(oddLanes(b), factor);
    for (let pair = list + 8; pair < end; pair += 8) {
      const row = <usize>load<u32>(pair) + column;
      const weight = v128.load32_splat(pair, 4);
      const w = v128.load(row), x = v128.load(row, 16);
      e0 = f32x4.add(e0, f32x4.mul(evenLanes(w), weight));
      o0 = f32x4.add(o0, f32x4.mul(oddLanes(w), weight));
      e1 = f32x4.add(e1, f32x4.mul(evenLanes(x), weight));
      o1 = f32x4.add(o1, f32x4.mul(oddLanes(x), weight));
    }
    v128.store(out + column, interleaveToBf16(e0, o0));
    v128.store(out + column, interleaveToBf16(e1, o1), 16);
  }
  for (; column < stop; column += 16) {
    const a = v128.load(first + column);
    let e = f32x4.mul(evenLanes(a), factor), o = f32x4.mul(oddLanes(a), factor);
    for (let pair = list + 8; pair < end; pair += 8) {
      const w = v128.load(<usize>load<u32>(pair) + column);
      const weight = v128.load32_splat(pair, 4);
      e = f32x4.add(e, f32x4.mul(evenLanes(w), weight));
      o = f32x4.add(o, f32x4.mul(oddLanes(w), weight));
    }
    v128.store(out + column, interleaveToBf16(e, o));
  }
}

/** One row of sumWeightedRowsF32. */
export function weightedNumbers(out: usize, list: usize, count: i32, bytes: usize): void {
  const end = list + (<usize>count << 3);
  for (let column: usize = 0; column < bytes; column += 16) {
    let e = f32x4.splat(0), o = f32x4.splat(0);
    for (let pair = list; pair < end; pair += 8) {
      const w = v128.load(<usize>load<u32>(pair) + column);
      const weight = v128.load32_splat(pair, 4);
      const even = f32x4.mul(evenLanes(w), weight), odd = f32x4.mul(oddLanes(w), weight);
      e = pair == list ? even : f32x4.add(e, even);
      o = pair == list ? odd : f32x4.add(o, odd);
    }
    v128.store(out + (column << 1), v128.shuffle<i32>(e, o, 0, 4, 1, 5));
    v128.store(out + (column << 1), v128.shuffle<i32>(e, o, 2, 6, 3, 7), 16);
  }
}
