// Numbers of the element formats and operations of kernels that sum, and the layout of fp8 rows; the kernels get them from here.
import { defineLayout } from './layout.ts';

/** How a kernel is told the dtype of the rows that it sums. */
export const elementFormats = { bf16: 0, f16: 1, f32: 2 } as const;

/** How a kernel is told the dtype of what it reduces. */
export const reductionFormats = { bf16: 0, f32: 1, i32: 2 } as const;

/** How a kernel is told what it makes of the elements that lie at one place of all ranks. */
export const reductions = { sum: 0, max: 1, min: 2 } as const;

/** fp8 rows have one f32 scale for each group of so many columns. */
export const FP8_GROUP = 128;

// What the CUDA kernels take that turn bf16 rows into fp8 rows with scales, and back.

export const fp8RowsArguments = defineLayout('Fp8RowsArguments', {
  /** bf16 [rows, columns] */
  x: 'ptr',
  /** e4m3 [rows, columns] */
  data: 'ptr',
  /** f32 [rows, ceil(columns / 128)] */
  scales: 'ptr',
  rows: 'u32',
  columns: 'u32',
  /** Scales as powers of two; quantizeRows only. */
  roundScale: 'u32',
});
