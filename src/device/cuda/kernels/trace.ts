// The kernel of kernels/cuda/trace-clock.cu, which compares the clocks of GPU and host.
import { traceClockArguments } from '../../../abi/kernel-trace.ts';
import { defineKernelFile } from '../kernel-file.ts';

export const traceClockKernels = defineKernelFile({
  file: 'trace-clock.cu',
  constants: {},
  kernels: { traceClock: traceClockArguments },
  hot: false,
});
