// The kernels of kernels/cuda/fp8-rows.cu.
import { fp8RowsArguments } from '../../../abi/element-formats.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const fp8RowsKernels = defineKernelFile({
  file: 'fp8-rows.cu',
  constants: {},
  kernels: { quantizeRows: fp8RowsArguments, dequantizeRows: fp8RowsArguments },
  hot: true,
});
