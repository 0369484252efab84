// What the CUDA kernels take that turn bf16 rows into fp8 rows with scales, and back.
import { defineLayout } from './layout.ts';

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
