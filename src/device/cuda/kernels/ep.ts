// The kernels of expert parallelism.
import { epCombineArguments, epDispatchArguments, epLayoutArguments } from '../../../abi/ep.ts';
import { defineKernelFile } from '../kernel-file.ts';

/** Most choices per token, which a thread keeps in registers. */
const columns = { COLUMNS: { choices: [8, 32] } } as const;

/** 1 for a group on several hosts. */
const hosts = { HOSTS: { choices: [0, 1] } } as const;

export const epLayoutKernels = defineKernelFile({
  file: 'ep-layout.cu',
  constants: columns,
  kernels: { epLayout: epLayoutArguments },
  hot: true,
});

export const epDispatchKernels = defineKernelFile({
  file: 'ep-dispatch.cu',
  constants: { ...columns, ...hosts },
  kernels: { epDispatch: epDispatchArguments },
  hot: true,
});

export const epCombineKernels = defineKernelFile({
  file: 'ep-combine.cu',
  constants: hosts,
  kernels: { epCombine: epCombineArguments },
  hot: true,
});
