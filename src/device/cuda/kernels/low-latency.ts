// The kernels of EpLowLatency.
import { lowLatencyCombineArguments, lowLatencyDispatchArguments } from '../../../abi/low-latency-arguments.ts';
import { defineKernelFile } from '../kernel-file.ts';

/** 1: ranks come and go. Of its own, so that objects with fixed ranks pay nothing for it. */
const constants = { ELASTIC: { choices: [0, 1] } } as const;

export const lowLatencyDispatchKernels = defineKernelFile({
  file: 'low-latency-dispatch.cu',
  constants,
  kernels: { lowLatencyDispatch: lowLatencyDispatchArguments },
  hot: true,
});

export const lowLatencyCombineKernels = defineKernelFile({
  file: 'low-latency-combine.cu',
  constants,
  kernels: { lowLatencyCombine: lowLatencyCombineArguments },
  hot: true,
});
