// Numbers of the element formats and operations of kernels that sum, and the layout of fp8 rows; the kernels get them from here.
import { alignUp, defineLayout } from './layout.ts';

/** How a kernel is told the dtype of the rows that it sums. */
export const elementFormats = { bf16: 0, f16: 1, f32: 2 } as const;

/** How a kernel is told the dtype of what it reduces. */
export const reductionFormats = { bf16: 0, f32: 1, i32: 2 } as const;

/** How a kernel is told what it makes of the elements that lie at one place of all ranks. */
export const reductions = { sum: 0, max: 1, min: 2 } as const;

/** fp8 rows have one f32 scale for each group of so many columns. */
export const FP8_GROUP = 128;

/** How a kernel that adds sums of other hosts is told that they are fp8: the codes of a sum, and its scales behind them. */
export const FP8_SUM_FORMAT = 3;
/** What a lane of a GPU stores of such a sum at once. */
export const FP8_SUM_ALIGNMENT = 8;

/** Bytes from one such sum to the next. */
export function fp8SumBytes(columns: number): number {
  return alignUp(columns + Math.ceil(columns / FP8_GROUP) * 4, FP8_SUM_ALIGNMENT);
}

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
