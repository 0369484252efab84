// Sums across hosts with f32 between them: a host's rows of a token become one f32 row, which the token's rank adds to
// its own host's rows. All sums are in f32, in the order of the columns, and start from the first row.
//
// f32 rows hold their elements in order, rows of bf16 and f16 become even and odd ones (see bf16.ts).
import { ELEMENT_FORMAT_F16, ELEMENT_FORMAT_F32, FP8_SUM_FORMAT } from 'abi';
import { evenLanes, interleaveNumbers, interleaveToBf16, oddLanes, plainNan } from './bf16';
import { dequantizeSum, sumBytesOf } from './fp8';
import { evenHalves, interleaveToF16, oddHalves } from './f16';
import { listRows, rankSeen, sumRows } from './sum';

/** Bytes of bf16 that one step of the main loops takes: 32 values in eight accumulators. */
const STEP: usize = 64;

/**
 * gatherSum without biases whose out[t] is f32 and not rounded; every NaN becomes 0x7fc00000. A row alone is widened, no
 * row is all zeros. `rowBytes` and `format` are those of the rows: an out[t] of bf16 or f16 rows takes twice as many
 * bytes, of f32 rows it is what gatherSum makes. `scratch` holds `columns` addresses.
 */
export function gatherSumF32(
  out: usize,
  rowBytes: usize,
  tokens: i32,
  columns: i32,
  rowTable: usize,
  rankTable: usize,
  bases: usize,
  onePerRank: i32,
  scratch: usize,
  format: i32,
): void {
  const outBytes = format == ELEMENT_FORMAT_F32 ? rowBytes : rowBytes << 1;
  for (let t = 0; t < tokens; t++, out += outBytes) {
    const firstCell = <usize>t * <usize>columns;
    const count = listRows(scratch, 0, columns, firstCell, rowBytes, rowTable, rankTable, bases, onePerRank);
    const end = scratch + (<usize>count << 2);
    if (format == ELEMENT_FORMAT_F32 || count == 0) sumRows(out, scratch, count, outBytes, 0, ELEMENT_FORMAT_F32);
    else if (format == ELEMENT_FORMAT_F16) widenF16Columns(out, scratch, end, rowBytes);
    else widenBf16Columns(out, scratch, end, rowBytes);
  }
}

/**
 * gatherSum with columns of two formats: `columnFormats` i32 [columns] holds for each column that of its rows, `format`
 * or f32. Beside bf16 there may be fp8 sums as well, which become f32 in `wide`, a row for each of their columns.
 * `rowBytes` is that of out and of rows in `format`; f32 rows beside bf16 or f16 take twice as many. The result is
 * rounded once, also that of an f32 row alone. Columns of other hosts' sums take part in onePerRank under a number of their own,
 * which is not that of a rank. `scratch` holds 2 * (columns + 2) words.
 */
export function gatherSumMixed(
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
  columnFormats: usize,
  wide: usize,
): void {
  /** Distance from the address of a row to the word that says whether it is wide. */
  const toWide = <usize>(columns + 2) << 2;
  for (let t = 0; t < tokens; t++) {
    const at = <usize>t * rowBytes;
    let end = scratch;
    let wideRows = 0;
    let nextWide = wide;
    if (bias0 != 0) {
      store<u32>(end, <u32>(bias0 + at));
      store<u32>(end + toWide, 0);
      end += 4;
    }
    if (bias1 != 0) {
      store<u32>(end, <u32>(bias1 + at));
      store<u32>(end + toWide, 0);
      end += 4;
    }
    const firstCell = <usize>t * <usize>columns;
    for (let c = 0; c < columns; c++) {
      const cell = firstCell + <usize>c;
      const place = load<i32>(rowTable + (cell << 2));
      if (place < 0) continue;
      const rank = rankTable == 0 ? c : load<i32>(rankTable + (cell << 2));
      if (onePerRank != 0 && rankSeen(rankTable, firstCell, cell, rank)) continue;
      const columnFormat = load<i32>(columnFormats + (<usize>c << 2));
      const isWide = i32(columnFormat != format);
      const base = <usize>load<u32>(bases + (<usize>rank << 2));
      let row = base + ((<usize>place * rowBytes) << <usize>isWide);
      if (columnFormat == FP8_SUM_FORMAT) {
        const width = <i32>(rowBytes >> 1);
        row = nextWide;
        dequantizeSum(row, base + <usize>place * sumBytesOf(width), width);
        nextWide += rowBytes << 1;
      }
      store<u32>(end, <u32>row);
      store<u32>(end + toWide, <u32>isWide);
      wideRows += isWide;
      end += 4;
    }
    const count = <i32>((end - scratch) >> 2);
    if (wideRows == 0) sumRows(out + at, scratch, count, rowBytes, rankTable == 0 ? 0 : 1, format);
    else if (format == ELEMENT_FORMAT_F16) sumMixedF16(out + at, scratch, end, toWide, rowBytes);
    else sumMixedBf16(out + at, scratch, end, toWide, rowBytes);
  }
}

// The rest is exported only to stay functions of their own: see fp8.ts.

/** out, f32 = the sum of the bf16 rows, one or more, at the addresses from `sources` to `end`. */
export function widenBf16Columns(out: usize, sources: usize, end: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  let column: usize = 0;
  for (; column + STEP <= bytes; column += STEP) {
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
    const target = out + (column << 1);
    storeInOrder(target, e0, o0);
    storeInOrder(target + 32, e1, o1);
    storeInOrder(target + 64, e2, o2);
    storeInOrder(target + 96, e3, o3);
  }
  for (; column < bytes; column += 16) {
    const a = v128.load(first + column);
    let e = evenLanes(a), o = oddLanes(a);
    for (let s = sources + 4; s < end; s += 4) {
      const w = v128.load(<usize>load<u32>(s) + column);
      e = f32x4.add(e, evenLanes(w));
      o = f32x4.add(o, oddLanes(w));
    }
    storeInOrder(out + (column << 1), e, o);
  }
}

/** The same for rows of f16. */
export function widenF16Columns(out: usize, sources: usize, end: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  for (let column: usize = 0; column < bytes; column += 16) {
    const a = v128.load(first + column);
    let e = evenHalves(a), o = oddHalves(a);
    for (let s = sources + 4; s < end; s += 4) {
      const w = v128.load(<usize>load<u32>(s) + column);
      e = f32x4.add(e, evenHalves(w));
      o = f32x4.add(o, oddHalves(w));
    }
    storeInOrder(out + (column << 1), e, o);
  }
}

/**
 * out, bf16 = the sum of the rows, one or more, at the addresses from `sources` to `end`. The word `toWide` bytes behind
 * the address of a row says whether it is f32 instead of bf16.
 */
export function sumMixedBf16(out: usize, sources: usize, end: usize, toWide: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  const firstIsWide = load<u32>(sources + toWide) != 0;
  let column: usize = 0;
  for (; column + STEP <= bytes; column += STEP) {
    let e0: v128, o0: v128, e1: v128, o1: v128, e2: v128, o2: v128, e3: v128, o3: v128;
    if (firstIsWide) {
      const p = first + (column << 1);
      e0 = evenNumbers(p);
      o0 = oddNumbers(p);
      e1 = evenNumbers(p + 32);
      o1 = oddNumbers(p + 32);
      e2 = evenNumbers(p + 64);
      o2 = oddNumbers(p + 64);
      e3 = evenNumbers(p + 96);
      o3 = oddNumbers(p + 96);
    } else {
      const p = first + column;
      const a = v128.load(p);
      const b = v128.load(p, 16);
      const c = v128.load(p, 32);
      const d = v128.load(p, 48);
      e0 = evenLanes(a);
      o0 = oddLanes(a);
      e1 = evenLanes(b);
      o1 = oddLanes(b);
      e2 = evenLanes(c);
      o2 = oddLanes(c);
      e3 = evenLanes(d);
      o3 = oddLanes(d);
    }
    for (let s = sources + 4; s < end; s += 4) {
      if (load<u32>(s + toWide) != 0) {
        const q = <usize>load<u32>(s) + (column << 1);
        e0 = f32x4.add(e0, evenNumbers(q));
        o0 = f32x4.add(o0, oddNumbers(q));
        e1 = f32x4.add(e1, evenNumbers(q + 32));
        o1 = f32x4.add(o1, oddNumbers(q + 32));
        e2 = f32x4.add(e2, evenNumbers(q + 64));
        o2 = f32x4.add(o2, oddNumbers(q + 64));
        e3 = f32x4.add(e3, evenNumbers(q + 96));
        o3 = f32x4.add(o3, oddNumbers(q + 96));
      } else {
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
    }
    // The rule of sum.ts: a sum of all lanes is NaN if one of them is.
    const all = f32x4.add(
      f32x4.add(f32x4.add(e0, o0), f32x4.add(e1, o1)),
      f32x4.add(f32x4.add(e2, o2), f32x4.add(e3, o3)),
    );
    if (v128.any_true(f32x4.ne(all, all))) {
      v128.store(out + column, interleaveToBf16(e0, o0));
      v128.store(out + column, interleaveToBf16(e1, o1), 16);
      v128.store(out + column, interleaveToBf16(e2, o2), 32);
      v128.store(out + column, interleaveToBf16(e3, o3), 48);
    } else {
      v128.store(out + column, interleaveNumbers(e0, o0));
      v128.store(out + column, interleaveNumbers(e1, o1), 16);
      v128.store(out + column, interleaveNumbers(e2, o2), 32);
      v128.store(out + column, interleaveNumbers(e3, o3), 48);
    }
  }
  for (; column < bytes; column += 16) {
    let e: v128, o: v128;
    if (firstIsWide) {
      e = evenNumbers(first + (column << 1));
      o = oddNumbers(first + (column << 1));
    } else {
      const a = v128.load(first + column);
      e = evenLanes(a);
      o = oddLanes(a);
    }
    for (let s = sources + 4; s < end; s += 4) {
      const q = <usize>load<u32>(s);
      if (load<u32>(s + toWide) != 0) {
        e = f32x4.add(e, evenNumbers(q + (column << 1)));
        o = f32x4.add(o, oddNumbers(q + (column << 1)));
      } else {
        const w = v128.load(q + column);
        e = f32x4.add(e, evenLanes(w));
        o = f32x4.add(o, oddLanes(w));
      }
    }
    v128.store(out + column, interleaveToBf16(e, o));
  }
}

/** The same for f16. */
export function sumMixedF16(out: usize, sources: usize, end: usize, toWide: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  const firstIsWide = load<u32>(sources + toWide) != 0;
  for (let column: usize = 0; column < bytes; column += 16) {
    let e: v128, o: v128;
    if (firstIsWide) {
      e = evenNumbers(first + (column << 1));
      o = oddNumbers(first + (column << 1));
    } else {
      const a = v128.load(first + column);
      e = evenHalves(a);
      o = oddHalves(a);
    }
    for (let s = sources + 4; s < end; s += 4) {
      const q = <usize>load<u32>(s);
      if (load<u32>(s + toWide) != 0) {
        e = f32x4.add(e, evenNumbers(q + (column << 1)));
        o = f32x4.add(o, oddNumbers(q + (column << 1)));
      } else {
        const w = v128.load(q + column);
        e = f32x4.add(e, evenHalves(w));
        o = f32x4.add(o, oddHalves(w));
      }
    }
    v128.store(out + column, interleaveToF16(e, o));
  }
}

/** Elements 0, 2, 4, 6 of the eight f32 at `address`. */
@inline
function evenNumbers(address: usize): v128 {
  return v128.shuffle<i32>(v128.load(address), v128.load(address, 16), 0, 2, 4, 6);
}

/** Elements 1, 3, 5, 7. */
@inline
function oddNumbers(address: usize): v128 {
  return v128.shuffle<i32>(v128.load(address), v128.load(address, 16), 1, 3, 5, 7);
}

/** The reverse: eight f32, NaN as the plain one. */
@inline
function storeInOrder(address: usize, even: v128, odd: v128): void {
  const e = plainNan(even), o = plainNan(odd);
  v128.store(address, v128.shuffle<i32>(e, o, 0, 4, 1, 5));
  v128.store(address, v128.shuffle<i32>(e, o, 2, 6, 3, 7), 16);
}
