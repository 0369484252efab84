// The kernels of kernels/cuda/unpack.cu, which move the fragments of descriptor blocks.
import { moveFragmentsArguments } from '../../../abi/unpack-block.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const unpackKernels = defineKernelFile({
  file: 'unpack.cu',
  constants: { WARPS: { choices: [16, 32] } },
  kernels: {
    unpackSmall: moveFragmentsArguments,
    unpackLarge: moveFragmentsArguments,
    packSmall: moveFragmentsArguments,
    packLarge: moveFragmentsArguments,
  },
  hot: true,
});
