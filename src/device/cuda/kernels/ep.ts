// The kernels of expert parallelism.
import { epCombineArguments, epDispatchArguments, epPrepareArguments } from '../../../abi/ep-arguments.ts';
import { defineKernelFile } from '../kernel-file.ts';

/** COLUMNS: most choices per token; PREPARE_THREADS in the launches follows it. */
export const epPrepareKernels = defineKernelFile({
  file: 'ep-prepare.cu',
  constants: { COLUMNS: { choices: [8, 32] } },
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
