// The kernels of expert parallelism.
import { epCombineArguments, epDispatchArguments, epLayoutArguments } from '../../../abi/ep.ts';
import {
  lowLatencyCombineArguments,
  lowLatencyDispatchArguments,
  lowLatencyRows,
  lowLatencyTravels,
} from '../../../abi/low-latency.ts';
import { defineKernelFile } from '../kernel-file.ts';

// The kernels of EpLowLatency.

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
