// The kernels of EpLowLatency.
import { lowLatencyCombineArguments, lowLatencyDispatchArguments } from '../../../abi/low-latency-arguments.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const lowLatencyDispatchKernels = defineKernelFile({
  file: 'low-latency-dispatch.cu',
  constants: {},
  kernels: { lowLatencyDispatch: lowLatencyDispatchArguments },
  hot: true,
});

export const lowLatencyCombineKernels = defineKernelFile({
  file: 'low-latency-combine.cu',
  constants: {},
  kernels: { lowLatencyCombine: lowLatencyCombineArguments },
  hot: true,
});
