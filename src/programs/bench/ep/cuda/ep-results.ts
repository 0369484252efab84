// The result document of the expert-parallel bench on GPUs, made from the times of its cases.
import type { Settings } from '../../../../settings/settings.ts';
import { type MovedRows, summarizeMoved } from '../ep-results.ts';
import type { EpWorkload } from '../ep-workload.ts';
import type { MachineDocument } from '../../machine.ts';
import { type Summary, summarize, summarizePairs, summarizeRatios } from '../../statistics.ts';
import type { CudaCase } from './ep-case.ts';
import type { CudaCases } from './ep-cases.ts';
import type { RowDtype } from './ep-inputs.ts';
import type { GpuMachineDocument } from './gpu-machine.ts';
import type { CudaTimes } from './time-cases.ts';

/** Written into every document, so that a number can be read without this source. */
export const cudaMethod = {
  time: 'Microseconds between two events on the device around one call, opening and closing barrier of the ranks included, of the slowest rank. All devices meet before the first event, and pause until the call has enqueued its kernels.',
  returned:
    'Microseconds of the host until the call returned, from idle devices that have just met; of the slowest rank.',
  ready:
    'Microseconds of the host from the call until its results were ready and the host had noticed; of the slowest rank.',
  logical:
    'Bytes of every received row, own rows included (fp8 rows with their scales), of all ranks; GB/s are 1e9 bytes over the time of the slowest rank.',
  wire: 'Bytes of rows that came from another rank.',
  copies:
    'The ceiling: kernels with as many SMs that move the same rows between the same memory through shared memory by bulk copies, places known before, nothing counted, told or summed; the ranks meet before and after as in the library. Push loads a row once and stores it to each rank; pull loads all rows of a token and stores one. Before the timing each shape that fits (warps, parts in flight, bytes of a part) is tried, and the fastest is kept.',
  ratioToCopy:
    'Time of the bare copies of the same rows over that of the case, in the same iteration. For layer combine, which pulls a row per (token, expert), the time of the copy is multiplied by how many more rows cross.',
  beyondCached:
    'Time of the case less that of the same case with a cached handle, in the same iteration: what counts and their exchange cost.',
} as const;

export interface CudaCaseResult extends MovedRows {
  /** Medians. */
  readonly microsecondsOfRanks: readonly number[];
  readonly returnedMicroseconds: Summary;
  readonly readyMicroseconds: Summary;
  /** Not of a copy. */
  readonly ratioToCopy?: Summary;
  readonly beyondCopyMicroseconds?: Summary;
  /** Of uncached cases. */
  readonly beyondCached?: { readonly microseconds: Summary; readonly readyMicroseconds: Summary };
}

export interface CudaRun {
  readonly numSms: number;
  readonly copyShapes: CudaCases['copyShapes'];
  readonly cases: readonly CudaCaseResult[];
}

export interface EpCudaBenchReport {
  readonly schema: 'weftline.bench.ep.cuda/1';
  readonly date: string;
  readonly method: typeof cudaMethod;
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  readonly warmup: number;
  readonly iterations: number;
  readonly machine: MachineDocument;
  readonly gpuMachine: GpuMachineDocument;
  readonly settings: Settings;
  readonly loadAverage: { readonly before: number; readonly after: number };
  /** Bytes of one rank. */
  readonly bufferWindowBytes: number;
  /** Of each of the two layers; absent when they were left out. */
  readonly layerWindowBytes: number | undefined;
  readonly runs: readonly CudaRun[];
}

export function summarizeCudaCases(
  times: readonly CudaTimes[],
  cases: readonly CudaCase[],
  ranks: number,
): CudaCaseResult[] {
  const timesOf = (name: string): CudaTimes => times[cases.findIndex((other) => other.name === name)] as CudaTimes;
  return cases.map((one, index) => {
    const of = times[index] as CudaTimes;
    const scale = one.copyScale ?? 1;
    const copying = of.device.map((_, iteration) =>
      one.copies.reduce((sum, name) => sum + scale * (timesOf(name).device[iteration] as number), 0),
    );
    const cached = one.cached === undefined ? undefined : timesOf(one.cached);
    return {
      ...summarizeMoved(one, of.device, ranks),
      microsecondsOfRanks: of.deviceOfRanks.map((values) => summarize(values).median),
      returnedMicroseconds: summarize(of.returned),
      readyMicroseconds: summarize(of.ready),
      ...(one.copies.length > 0 && {
        ratioToCopy: summarizeRatios(copying, of.device),
        beyondCopyMicroseconds: summarizePairs(of.device, copying, difference),
      }),
      ...(cached && {
        beyondCached: {
          microseconds: summarizePairs(of.device, cached.device, difference),
          readyMicroseconds: summarizePairs(of.ready, cached.ready, difference),
        },
      }),
    };
  });
}

function difference(a: number, b: number): number {
  return a - b;
}
