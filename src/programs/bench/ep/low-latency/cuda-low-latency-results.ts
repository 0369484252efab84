// The result document of the low-latency bench on GPUs.
import type { Settings } from '../../../../settings/settings.ts';
import type { MachineDocument } from '../../machine.ts';
import type { GpuMachineDocument } from '../cuda/gpu-machine.ts';
import type { EpWorkload } from '../ep-workload.ts';
import type { LowLatencyVariant, Percentiles } from './low-latency-results.ts';

/** Written into every document, so that a number can be read without this source. */
export const cudaLowLatencyMethod = {
  time: 'Microseconds between two events on the device around one call, of the slowest rank; percentiles are of the samples. All devices meet before the first event, and pause until the call has enqueued its kernels.',
  parts: 'Send: the call with returnRecvHook. Receive: the hook, when the rows of all ranks are there.',
  chained:
    'Period of so many calls in a row in one CUDA graph, without any barrier between them. A sample is the mean of one launch. The experts between dispatch and combine compute nothing.',
  copies:
    'Kernels with as many SMs that move one row for each (token, rank) between the same memory in the fastest shape of those tried, places known before; the ranks meet before and after. Dispatch also quantises, counts, and writes a row to each of its experts.',
} as const;

export interface CudaLowLatencyCaseResult {
  readonly name: string;
  readonly dtype: 'fp8' | 'bf16';
  readonly microseconds: Percentiles;
  /** Time of the bare copy over that of the case, median of the same iterations. */
  readonly ratioToCopy?: number;
}

export interface CudaLowLatencyBenchReport {
  readonly schema: 'weftline.bench.ep.low-latency.cuda/1';
  readonly date: string;
  readonly method: typeof cudaLowLatencyMethod;
  readonly variant: LowLatencyVariant;
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly warmup: number;
  readonly iterations: number;
  readonly pairs: number;
  readonly machine: MachineDocument;
  readonly gpuMachine: GpuMachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  readonly windowBytes: number;
  readonly cases: readonly CudaLowLatencyCaseResult[];
}
