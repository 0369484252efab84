// The expert-parallel bench on GPUs: for each SM count, cases and bare copies timed in turn on all ranks; one document.
import { invalidArgument } from '../../../../core/errors.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { World } from '../../../../world/index.ts';
import { checkEpWorkload, type EpWorkload } from '../ep-workload.ts';
import { loadAverage, machineDocument } from '../../machine.ts';
import { makeCudaCases } from './ep-cases.ts';
import { makeCudaEpInputs, type RowDtype } from './ep-inputs.ts';
import { type CudaRun, cudaMethod, type EpCudaBenchReport, summarizeCudaCases } from './ep-results.ts';
import { gpuMachineDocument } from './gpu-machine.ts';
import { CudaMeeting } from './meeting.ts';
import { CudaStopwatch } from './stopwatch.ts';
import { timeCudaCases } from './time-cases.ts';

export interface EpCudaBenchOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  /** SM counts to run one after another. */
  readonly sms: readonly number[];
  /** False leaves EPAll2AllLayer out. */
  readonly layer: boolean;
  readonly iterations: number;
  readonly warmup: number;
  /** Of the bare copies: only a usual shape is tried. */
  readonly isOneShape: boolean;
}

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with
 * WL_CUDA when the memory does not suffice, and with WL_CHECK when a bare copy leaves other rows than dispatch.
 */
export async function runEpCudaBench(
  world: World,
  device: CudaDevice,
  options: EpCudaBenchOptions,
  progress?: (done: number, total: number) => void,
): Promise<EpCudaBenchReport | undefined> {
  const { workload, dtypes, sms, layer, iterations, warmup, isOneShape } = options;
  // What is generated for both dtypes does not depend on it.
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  for (const numSms of sms) checkSmCount(numSms, device.properties.multiprocessors);
  const gpuMachine = await gpuMachineDocument(world, device);
  const before = loadAverage();
  const inputs = await makeCudaEpInputs(world, device, full);
  using meeting = await CudaMeeting.create(world, device);
  using stopwatch = new CudaStopwatch(meeting);
  const runs: CudaRun[] = [];
  let windows = { bufferWindowBytes: 0, layerWindowBytes: undefined as number | undefined };
  for (const numSms of sms) {
    await using made = await makeCudaCases({ meeting, stopwatch, inputs, isOneShape }, { numSms, dtypes, layer });
    const times = await timeCudaCases(world, stopwatch, made.cases, {
      warmup,
      iterations,
      progress: progress && ((done, total) => progress(runs.length * total + done, sms.length * total)),
    });
    // Nobody releases its window while others still use it.
    await world.barrier('bench-done');
    windows = { bufferWindowBytes: made.bufferWindowBytes, layerWindowBytes: made.layerWindowBytes };
    runs.push({ numSms, copyShapes: made.copyShapes, cases: summarizeCudaCases(times, made.cases, world.size) });
  }
  if (gpuMachine === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.cuda/1',
    date: new Date().toISOString(),
    method: cudaMethod,
    workload,
    dtypes,
    warmup,
    iterations,
    machine: machineDocument(),
    gpuMachine,
    settings: world.settings,
    loadAverage: { before, after: loadAverage() },
    ...windows,
    runs,
  };
}

function checkSmCount(numSms: number, most: number): void {
  if (!Number.isSafeInteger(numSms) || numSms < 1 || numSms > most) {
    throw invalidArgument('sms', numSms, `1 to ${most}, the SMs of this GPU`);
  }
}
