// The kernels of expert parallelism.
import { epCombineArguments, epDispatchArguments, epPrepareArguments } from '../../../abi/ep-arguments.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const epPrepareKernels = defineKernelFile({
  file: 'ep-prepare.cu',
  constants: {},
  kernels: { epPrepare: epPrepareArguments },
  hot: true,
});

export const epDispatchKernels = defineKernelFile({
  file: 'ep-dispatch.cu',
  constants: {},
  kernels: { epDispatch: epDispatchArguments },
  hot: true,
});

export const epCombineKernels = defineKernelFile({
  file: 'ep-combine.cu',
  constants: {},
  kernels: { epCombine: epCombineArguments },
  hot: true,
});
