// Moves rows between this rank's memory and the windows of all ranks.
//
// A row table names, for token t and column c, a row at some rank, or -1. The rank is the column itself (compact layout:
// one column per rank) or stands in a rank table of the same shape (expanded layout: one column per top-k choice).
// `bases[r]` is the address of row 0 of the region at rank r, 0 for ranks of other hosts, whose rows the network carries:
// the kernels that write leave them out.
//
// `memory.copy` is the fastest copy there is here: the engine hands it to the C library, which does not read what it
// overwrites. The source row comes from memory once and from the first-level cache for the other ranks.
import { expertAt } from './topk';

/** Up to so many bytes the call of the C library costs more than the copy. */
const SHORT: usize = 64;

export function copyBytes(destination: usize, source: usize, bytes: usize): void {
  if (bytes > SHORT) memory.copy(destination, source, bytes);
  else if (bytes >= 16) copyVectors(destination, source, bytes);
  else copyFew(destination, source, bytes);
}

/** 16 to 64 bytes: from both ends to the middle. All loads come first, so that the ranges may overlap. */
@inline
function copyVectors(destination: usize, source: usize, bytes: usize): void {
  const first = v128.load(source), last = v128.load(source + bytes - 16);
  if (bytes > 32) {
    const second = v128.load(source, 16), third = v128.load(source + bytes - 32);
    v128.store(destination, second, 16);
    v128.store(destination + bytes - 32, third);
  }
  v128.store(destination, first);
  v128.store(destination + bytes - 16, last);
}

@inline
function copyFew(destination: usize, source: usize, bytes: usize): void {
  if (bytes >= 8) {
    const first = load<u64>(source), last = load<u64>(source + bytes - 8);
    store<u64>(destination, first);
    store<u64>(destination + bytes - 8, last);
  } else if (bytes >= 4) {
    const first = load<u32>(source), last = load<u32>(source + bytes - 4);
    store<u32>(destination, first);
    store<u32>(destination + bytes - 4, last);
  } else if (bytes > 0) {
    const first = load<u8>(source), middle = load<u8>(source + (bytes >> 1)), last = load<u8>(source + bytes - 1);
    store<u8>(destination, first);
    store<u8>(destination + (bytes >> 1), middle);
    store<u8>(destination + bytes - 1, last);
  }
}

@inline
function rankAt(rankTable: usize, cell: usize, column: i32): i32 {
  return rankTable == 0 ? column : load<i32>(rankTable + (cell << 2));
}

/** Copies row t of `source` to every place that the table names for token t. */
export function scatterRows(
  source: usize,
  rowBytes: usize,
  tokens: i32,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
): void {
  for (let t = 0; t < tokens; t++) {
    scatterRow(source + <usize>t * rowBytes, rowBytes, columns, rowTable, rankTable, bases, <usize>t * <usize>columns);
  }
}

/** One token of scatterRows; a function of its own, so that the engine can switch to optimised code between tokens. */
export function scatterRow(
  row: usize,
  rowBytes: usize,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
  cell: usize,
): void {
  for (let c = 0; c < columns; c++, cell++) {
    const place = load<i32>(rowTable + (cell << 2));
    if (place < 0) continue;
    const base = <usize>load<u32>(bases + (<usize>rankAt(rankTable, cell, c) << 2));
    if (base == 0) continue;
    memory.copy(base + <usize>place * rowBytes, row, rowBytes);
  }
}

/** Writes t to every place that the table names for token t. */
export function scatterTokenIndex(
  tokens: i32,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
): void {
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    for (let c = 0; c < columns; c++, cell++) {
      const place = load<i32>(rowTable + (cell << 2));
      if (place < 0) continue;
      const base = <usize>load<u32>(bases + (<usize>rankAt(rankTable, cell, c) << 2));
      if (base == 0) continue;
      store<i32>(base + (<usize>place << 2), t);
    }
  }
}

/**
 * Writes weights[t, c] to the place that the table names for (t, c): one weight per row, expanded layout.
 * `weightBytes` is 4 (f32) or 2 (bf16).
 */
export function scatterWeight(
  weights: usize,
  weightBytes: i32,
  tokens: i32,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
): void {
  const cells = <usize>tokens * <usize>columns;
  for (let cell: usize = 0; cell < cells; cell++) {
    const place = load<i32>(rowTable + (cell << 2));
    if (place < 0) continue;
    const base = <usize>load<u32>(bases + (<usize>load<i32>(rankTable + (cell << 2)) << 2));
    if (base == 0) continue;
    if (weightBytes == 4) store<u32>(base + (<usize>place << 2), load<u32>(weights + (cell << 2)));
    else store<u16>(base + (<usize>place << 1), load<u16>(weights + (cell << 1)));
  }
}

/**
 * Compact layout: sends the top-k choices of each token to every rank that receives it, as that rank's local expert
 * ids, -1 for experts of other ranks. `indexBytes` is 4 (i32) or 8 (i64), the same here and there. `columnRanks` i32
 * [columns] says whose column each is; 0: column r is rank r's.
 */
export function scatterTopkIndex(
  topk: usize,
  indexBytes: i32,
  tokens: i32,
  k: i32,
  columns: i32,
  expertsPerRank: i32,
  rowTable: usize,
  bases: usize,
  columnRanks: usize,
): void {
  let cell: usize = 0;
  const wide = indexBytes == 8;
  const pitch = <usize>(k * indexBytes);
  const most = i32x4.splat(expertsPerRank);
  for (let t = 0; t < tokens; t++) {
    const row = topk + <usize>t * pitch;
    for (let c = 0; c < columns; c++, cell++) {
      const place = load<i32>(rowTable + (cell << 2));
      if (place < 0) continue;
      const base = <usize>load<u32>(bases + (<usize>c << 2));
      if (base == 0) continue;
      const target = base + <usize>place * pitch;
      const firstExpert = (columnRanks == 0 ? c : load<i32>(columnRanks + (<usize>c << 2))) * expertsPerRank;
      let j: usize = 0;
      if (!wide) {
        // Unsigned, so that -1 and experts of lower ranks are beyond every bound.
        for (; j + 4 <= <usize>k; j += 4) {
          const local = i32x4.sub(v128.load(row + (j << 2)), i32x4.splat(firstExpert));
          v128.store(target + (j << 2), v128.or(local, i32x4.ge_u(local, most)));
        }
      }
      for (; j < <usize>k; j++) {
        const local = expertAt(row, wide, j) - firstExpert;
        const value = <u32>local < <u32>expertsPerRank ? local : -1;
        if (wide) store<i64>(target + (j << 3), <i64>value);
        else store<i32>(target + (j << 2), value);
      }
    }
  }
}

/** Compact layout: sends the weights of each token, 0 where the expert belongs to another rank. See scatterTopkIndex. */
export function scatterTopkWeight(
  topk: usize,
  indexBytes: i32,
  weights: usize,
  tokens: i32,
  k: i32,
  columns: i32,
  expertsPerRank: i32,
  rowTable: usize,
  bases: usize,
  columnRanks: usize,
): void {
  let cell: usize = 0;
  const wide = indexBytes == 8;
  const most = i32x4.splat(expertsPerRank);
  for (let t = 0; t < tokens; t++) {
    const row = topk + <usize>(t * k * indexBytes);
    const weightRow = weights + (<usize>(t * k) << 2);
    for (let c = 0; c < columns; c++, cell++) {
      const place = load<i32>(rowTable + (cell << 2));
      if (place < 0) continue;
      const base = <usize>load<u32>(bases + (<usize>c << 2));
      if (base == 0) continue;
      const target = base + (<usize>place * <usize>k << 2);
      const firstExpert = (columnRanks == 0 ? c : load<i32>(columnRanks + (<usize>c << 2))) * expertsPerRank;
      let j: usize = 0;
      if (!wide) {
        for (; j + 4 <= <usize>k; j += 4) {
          const local = i32x4.sub(v128.load(row + (j << 2)), i32x4.splat(firstExpert));
          v128.store(target + (j << 2), v128.and(v128.load(weightRow + (j << 2)), i32x4.lt_u(local, most)));
        }
      }
      for (; j < <usize>k; j++) {
        const mine = <u32>(expertAt(row, wide, j) - firstExpert) < <u32>expertsPerRank;
        store<f32>(target + (j << 2), mine ? load<f32>(weightRow + (j << 2)) : 0);
      }
    }
  }
}

/** Compact layout: out[t, j] = sum over the ranks that hold token t, in rank order, of their weight row. */
export function gatherTopkWeight(
  out: usize,
  tokens: i32,
  k: i32,
  ranks: i32,
  rowTable: usize,
  bases: usize,
): void {
  let cell: usize = 0;
  for (let t = 0; t < tokens; t++) {
    const target = out + (<usize>(t * k) << 2);
    memory.fill(target, 0, <usize>k << 2);
    for (let r = 0; r < ranks; r++, cell++) {
      const place = load<i32>(rowTable + (cell << 2));
      if (place < 0) continue;
      const source = <usize>load<u32>(bases + (<usize>r << 2)) + (<usize>place * <usize>k << 2);
      for (let j: usize = 0; j < <usize>k; j++) {
        store<f32>(target + (j << 2), load<f32>(target + (j << 2)) + load<f32>(source + (j << 2)));
      }
    }
  }
}
