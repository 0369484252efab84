// The kernels that move the fragments of descriptor blocks, and the bare copy that they are measured against.
import { benchFragmentsArguments, moveFragmentsArguments, persistentArguments } from '../../../abi/unpack.ts';
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

export const persistentUnpackKernels = defineKernelFile({
  file: 'unpack-persistent.cu',
  constants: {},
  kernels: { unpackPersistent: persistentArguments, packPersistent: persistentArguments },
  hot: true,
});

export const benchUnpackKernels = defineKernelFile({
  file: 'bench-unpack.cu',
  constants: {},
  kernels: { benchFragments: benchFragmentsArguments, benchFragmentsBatched: benchFragmentsArguments },
  hot: true,
});
