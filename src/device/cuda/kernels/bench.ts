// The kernels of kernels/cuda/bench-copy.cu, which show what copying alone takes.
import {
  benchCopyArguments,
  benchMeetArguments,
  selfTestCopyRowsArguments,
  selfTestFillArguments,
  selfTestWaitArguments,
} from '../../../abi/bench.ts';
import { defineKernelFile } from '../kernel-file.ts';

// The kernels of kernels/cuda/self-test.cu, which show that a device works.

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

export const benchKernels = defineKernelFile({
  file: 'bench-copy.cu',
  constants: {},
  kernels: { benchMeet: benchMeetArguments, benchPush: benchCopyArguments, benchPull: benchCopyArguments },
  hot: true,
});
