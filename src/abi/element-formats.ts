// Numbers of the element formats that kernels sum, and the layout of fp8 rows; the CPU and CUDA kernels get them from here.

/** How a kernel is told the dtype of the rows that it sums. */
export const elementFormats = { bf16: 0, f16: 1, f32: 2 } as const;

/** fp8 rows have one f32 scale for each group of so many columns. */
export const FP8_GROUP = 128;
