// The kernels of kernels/cuda/self-test.cu, which show that a device works.
import { selfTestCopyRowsArguments, selfTestFillArguments, selfTestWaitArguments } from '../../../abi/bench.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const selfTestKernels = defineKernelFile({
  file: 'self-test.cu',
  constants: {},
  kernels: {
    selfTestFill: selfTestFillArguments,
    selfTestWait: selfTestWaitArguments,
    selfTestCopyRows: selfTestCopyRowsArguments,
  },
  hot: true,
});

/** Barriers, then two rows per warp. */
export function selfTestCopyRowsSharedBytes(warps: number, rowBytes: number): number {
  return 1024 + 2 * warps * rowBytes;
}
