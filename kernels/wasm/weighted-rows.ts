// Adds weighted f32 rows through a list of i32 row numbers, and rounds them to bf16. Columns are a multiple of 8.
import { packToBf16 } from './bf16';

/** y[rows[i]] += weights[i] * x[i], all f32. A row number may appear more than once. */
export function accumulateRows(y: usize, rows: usize, weights: usize, x: usize, count: i32, columns: i32): void {
  const rowBytes = (<usize>columns) << 2;
  for (const end = rows + ((<usize>count) << 2); rows < end; rows += 4, weights += 4, x += rowBytes) {
    accumulateRow(y + rowBytes * <usize>load<u32>(rows), x, load<f32>(weights), rowBytes);
  }
}

/** out[i] = bf16(weights[i] * x[i]) for f32 rows; with weights at 0, out[i] = bf16(x[i]). */
export function roundRows(out: usize, x: usize, weights: usize, count: i32, columns: i32): void {
  const rowBytes = (<usize>columns) << 2;
  for (let row = 0; row < count; row++, x += rowBytes, out += rowBytes >> 1) {
    roundRow(out, x, weights ? load<f32>(weights + ((<usize>row) << 2)) : 1, rowBytes);
  }
}

// Exported only to stay functions of their own: see fp8.ts.
export function accumulateRow(y: usize, x: usize, weight: f32, bytes: usize): void {
  const factor = f32x4.splat(weight);
  for (const end = x + bytes; x < end; x += 32, y += 32) {
    v128.store(y, f32x4.add(v128.load(y), f32x4.mul(factor, v128.load(x))));
    v128.store(y, f32x4.add(v128.load(y, 16), f32x4.mul(factor, v128.load(x, 16))), 16);
  }
}

export function roundRow(out: usize, x: usize, weight: f32, bytes: usize): void {
  const factor = f32x4.splat(weight);
  for (const end = x + bytes; x < end; x += 32, out += 16) {
    v128.store(out, packToBf16(f32x4.mul(factor, v128.load(x)), f32x4.mul(factor, v128.load(x, 16))));
  }
}
