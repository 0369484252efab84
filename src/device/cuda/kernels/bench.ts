// The kernels of kernels/cuda/bench-copy.cu, which show what copying alone takes.
import { benchCopyArguments, benchMeetArguments } from '../../../abi/bench.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const benchKernels = defineKernelFile({
  file: 'bench-copy.cu',
  constants: {},
  kernels: { benchMeet: benchMeetArguments, benchPush: benchCopyArguments, benchPull: benchCopyArguments },
  hot: true,
});
