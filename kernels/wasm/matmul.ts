// Multiplies bf16 rows by a bf16 weight matrix with f32 accumulation.
import { evenLanes, oddLanes } from './bf16';

/** Bytes of weights that stay in a core's second-level cache while all rows pass by. */
const WEIGHT_BLOCK: i32 = 262_144;

/**
 * out[i,j] = sum over k of x[rows[i],k] * w[j,k] for i < m, j < n: a linear layer whose weights are [n,k] as in PyTorch.
 * `rows` is the address of i32 row numbers, or 0 for rows 0 to m-1. The order of the sum depends on k alone, so that a row's
 * result is the same bits whatever else is in the batch. k is a multiple of 8; out is f32.
 */
export function matmul(out: usize, x: usize, rows: usize, w: usize, m: i32, n: i32, k: i32): void {
  const rowBytes = (<usize>k) << 1;
  const block = max(WEIGHT_BLOCK / max(<i32>rowBytes, 1), 4) & ~3;
  for (let from = 0; from < n; from += block) {
    const to = min(from + block, n);
    for (let i = 0; i < m; i += 2) {
      // An odd last row is computed twice and stored twice at the same place.
      const i1 = min(i + 1, m - 1);
      const x0 = x + rowBytes * <usize>(rows ? load<i32>(rows + ((<usize>i) << 2)) : i);
      const x1 = x + rowBytes * <usize>(rows ? load<i32>(rows + ((<usize>i1) << 2)) : i1);
      const out0 = out + ((<usize>i * <usize>n) << 2);
      const out1 = out + ((<usize>i1 * <usize>n) << 2);
      for (let j = from; j < to; j += 4) {
        const column = (<usize>j) << 2;
        multiplyTile(out0 + column, out1 + column, x0, x1, w + <usize>j * rowBytes, k, min(to - j, 4));
      }
    }
  }
}

// Exported only to stay a function of its own: see fp8.ts.
/** Two rows by up to four columns. Each sum runs in four lanes (even, then odd elements of eight), added as (0+2) + (1+3). */
export function multiplyTile(
  out0: usize,
  out1: usize,
  x0: usize,
  x1: usize,
  w0: usize,
  k: i32,
  columns: i32,
): void {
  const rowBytes = (<usize>k) << 1;
  const w1 = columns > 1 ? w0 + rowBytes : w0;
  const w2 = columns > 2 ? w1 + rowBytes : w1;
  const w3 = columns > 3 ? w2 + rowBytes : w2;
  let a0 = f32x4.splat(0);
  let a1 = f32x4.splat(0);
  let a2 = f32x4.splat(0);
  let a3 = f32x4.splat(0);
  let b0 = f32x4.splat(0);
  let b1 = f32x4.splat(0);
  let b2 = f32x4.splat(0);
  let b3 = f32x4.splat(0);
  for (let at: usize = 0; at < rowBytes; at += 16) {
    const row0 = v128.load(x0 + at);
    const row1 = v128.load(x1 + at);
    const even0 = evenLanes(row0);
    const odd0 = oddLanes(row0);
    const even1 = evenLanes(row1);
    const odd1 = oddLanes(row1);
    const c0 = v128.load(w0 + at);
    const c1 = v128.load(w1 + at);
    const c2 = v128.load(w2 + at);
    const c3 = v128.load(w3 + at);
    a0 = f32x4.add(a0, f32x4.mul(even0, evenLanes(c0)));
    b0 = f32x4.add(b0, f32x4.mul(even1, evenLanes(c0)));
    a0 = f32x4.add(a0, f32x4.mul(odd0, oddLanes(c0)));
    b0 = f32x4.add(b0, f32x4.mul(odd1, oddLanes(c0)));
    a1 = f32x4.add(a1, f32x4.mul(even0, evenLanes(c1)));
    b1 = f32x4.add(b1, f32x4.mul(even1, evenLanes(c1)));
    a1 = f32x4.add(a1, f32x4.mul(odd0, oddLanes(c1)));
    b1 = f32x4.add(b1, f32x4.mul(odd1, oddLanes(c1)));
    a2 = f32x4.add(a2, f32x4.mul(even0, evenLanes(c2)));
    b2 = f32x4.add(b2, f32x4.mul(even1, evenLanes(c2)));
    a2 = f32x4.add(a2, f32x4.mul(odd0, oddLanes(c2)));
    b2 = f32x4.add(b2, f32x4.mul(odd1, oddLanes(c2)));
    a3 = f32x4.add(a3, f32x4.mul(even0, evenLanes(c3)));
    b3 = f32x4.add(b3, f32x4.mul(even1, evenLanes(c3)));
    a3 = f32x4.add(a3, f32x4.mul(odd0, oddLanes(c3)));
    b3 = f32x4.add(b3, f32x4.mul(odd1, oddLanes(c3)));
  }
  storeColumns(out0, sumLanes(a0, a1, a2, a3), columns);
  storeColumns(out1, sumLanes(b0, b1, b2, b3), columns);
}

/** [sum of a, sum of b, sum of c, sum of d]. */
@inline
function sumLanes(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.add(v128.shuffle<f32>(a, b, 0, 4, 1, 5), v128.shuffle<f32>(a, b, 2, 6, 3, 7));
  const cd = f32x4.add(v128.shuffle<f32>(c, d, 0, 4, 1, 5), v128.shuffle<f32>(c, d, 2, 6, 3, 7));
  return f32x4.add(v128.shuffle<f32>(ab, cd, 0, 1, 4, 5), v128.shuffle<f32>(ab, cd, 2, 3, 6, 7));
}

@inline
function storeColumns(out: usize, sums: v128, columns: i32): void {
  if (columns == 4) v128.store(out, sums);
  else {
    v128.store32_lane(out, sums, 0);
    if (columns > 1) v128.store32_lane(out, sums, 1, 4);
    if (columns > 2) v128.store32_lane(out, sums, 2, 8);
  }
}
