// The low-latency bench on GPUs: calls, their parts and chains in a graph, beside the bare copies of the same rows.
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { EpBuffer, EpLowLatency } from '../../../../ep/index.ts';
import type { World } from '../../../../world/index.ts';
import { interleave } from '../../interleaved.ts';
import { loadAverage, machineDocument } from '../../machine.ts';
import { pullName, pushName } from '../cuda/ep-case.ts';
import { makePull, makePush } from '../cuda/ep-copies.ts';
import { makeCudaEpInputs } from '../cuda/ep-inputs.ts';
import { gpuMachineDocument } from '../cuda/gpu-machine.ts';
import { CudaMeeting } from '../cuda/meeting.ts';
import { CudaStopwatch } from '../cuda/stopwatch.ts';
import { benchBufferConfig } from '../ep-memory.ts';
import { checkEpWorkload, type EpWorkload } from '../ep-workload.ts';
import { type CudaLowLatencyCase, makeCudaLowLatencyCases } from './cuda-low-latency-cases.ts';
import {
  type CudaLowLatencyBenchReport,
  type CudaLowLatencyCaseResult,
  cudaLowLatencyMethod,
} from './cuda-low-latency-results.ts';
import type { LowLatencyBenchOptions } from './low-latency-bench.ts';
import { lowLatencyConfigOf } from './low-latency-config.ts';
import { percentilesOf, slowestOf } from './low-latency-results.ts';

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with WL_MEMORY
 * when windows or results do not fit, and with WL_CHECK when a bare copy leaves other rows than dispatch.
 */
export async function runCudaLowLatencyBench(
  world: World,
  device: CudaDevice,
  options: LowLatencyBenchOptions & { readonly isOneShape: boolean },
  progress?: (done: number, total: number) => void,
): Promise<CudaLowLatencyBenchReport | undefined> {
  const { workload, variant, dtypes, iterations, warmup, pairs, numSms, isOneShape } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const gpuMachine = await gpuMachineDocument(world, device);
  const before = loadAverage();
  const inputs = await makeCudaEpInputs(world, device, full);
  using meeting = await CudaMeeting.create(world, device);
  using stopwatch = new CudaStopwatch(meeting);
  await using buffer = await EpBuffer.create(world, device, {
    ...benchBufferConfig(full),
    numSms: numSms || device.properties.multiprocessors,
  });
  const counter = await device.tensor('i32', [1], new Int32Array(1));
  const tools = { meeting, stopwatch, inputs, buffer, counter, isOneShape };
  const { bf16, topkIdx, topkWeights } = inputs;
  // Leaves the rows that the bare pull is checked with.
  (await buffer.dispatch({ x: bf16, topkIdx, topkWeights })).handle.dispose();
  const copies: CudaLowLatencyCase[] = [];
  const pull = await makePull(tools);
  copies.push({ name: pullName, dtype: 'bf16', calls: 1, run: pull.launch });
  for (const dtype of dtypes) {
    const push = await makePush(tools, dtype);
    copies.push({ name: pushName(dtype), dtype, calls: 1, run: push.launch });
  }
  await using ll = await EpLowLatency.create(world, device, lowLatencyConfigOf(workload, variant, numSms));
  using made = await makeCudaLowLatencyCases({ ll, device, inputs, variant }, { dtypes, pairs });
  const cases = [...copies, ...made.cases];
  const mine = cases.map((): number[] => []);
  await interleave(cases.length, { warmup, iterations, progress }, async (index, iteration) => {
    const { prepare, run, finish, calls } = cases[index] as CudaLowLatencyCase;
    await prepare?.();
    const time = await stopwatch.onDevice(run);
    await finish?.();
    if (iteration >= 0) mine[index]!.push(time / calls);
  });
  const slowest: number[][] = [];
  for (const times of mine) slowest.push(slowestOf(await world.allGather('bench-times', times)));
  await world.barrier('bench-done');
  if (gpuMachine === undefined) return undefined;
  const results = cases.map(({ name, dtype, copy }, index): CudaLowLatencyCaseResult => {
    const times = slowest[index]!;
    const of = copy === undefined ? undefined : slowest[cases.findIndex((other) => other.name === copy)]!;
    const ratios = of && { ratioToCopy: percentilesOf(of.map((time, at) => time / times[at]!)).p50 };
    return { name, dtype, microseconds: percentilesOf(times), ...ratios };
  });
  return {
    schema: 'weftline.bench.ep.low-latency.cuda/1',
    date: new Date().toISOString(),
    method: cudaLowLatencyMethod,
    variant,
    workload,
    warmup,
    iterations,
    pairs,
    machine: machineDocument(),
    gpuMachine,
    settings: world.settings,
    loadAverage: { before, after: loadAverage() },
    windowBytes: ll.size.bytes,
    cases: results,
  };
}
