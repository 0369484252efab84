// The kernels of EpLowLatency.
import {
  lowLatencyCombineArguments,
  lowLatencyDispatchArguments,
  lowLatencyRows,
  lowLatencyTravels,
} from '../../../abi/low-latency.ts';
import { defineKernelFile } from '../kernel-file.ts';

/**
 * 1: ranks come and go. What an object is made for is compiled into its kernels: instructions that they would jump over have to
 * be fetched, and calls are short enough to feel it.
 */
const ELASTIC = { choices: [0, 1] } as const;

export const lowLatencyDispatchKernels = defineKernelFile({
  file: 'low-latency-dispatch.cu',
  constants: { ELASTIC, RANK_MAJOR: { choices: [0, 1] }, ROWS: { choices: Object.values(lowLatencyRows) } },
  kernels: { lowLatencyDispatch: lowLatencyDispatchArguments },
  hot: true,
});

export const lowLatencyCombineKernels = defineKernelFile({
  file: 'low-latency-combine.cu',
  constants: { ELASTIC, TRAVELS: { choices: Object.values(lowLatencyTravels) } },
  kernels: { lowLatencyCombine: lowLatencyCombineArguments },
  hot: true,
});
