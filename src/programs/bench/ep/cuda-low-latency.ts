// The low-latency bench on GPUs: calls, their parts and chains in a graph, beside the bare copies of the same rows.
import { median } from '../../../core/quantile.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaGraph } from '../../../device/cuda/cuda-graph.ts';
import { EpBuffer } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { measureInTurn, percentilesOf, type Progress } from '../harness.ts';
import { gpuMachineDocument, recordRun } from '../machine.ts';
import { makeBareCopies, makeCudaTools, pullName, pushName, type RowDtype } from './cuda-copies.ts';
import { benchBufferConfig } from './ep-memory.ts';
import { checkEpWorkload, type EpWorkload } from './ep-workload.ts';
import { type LowLatencyBenchOptions, LowLatencyCalls, type LowLatencyCase, singleCases } from './low-latency.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  time: 'Microseconds between two events on the device around one call, of the slowest rank; percentiles are of the samples. All devices meet before the first event, and pause until the call has enqueued its kernels.',
  parts: 'Send: the call with returnRecvHook. Receive: the hook, when the rows of all ranks are there.',
  chained:
    'Period of so many calls in a row in one CUDA graph, without any barrier between them. A sample is the mean of one launch. The experts between dispatch and combine compute nothing.',
  ratio:
    'Time of the bare copy over that of the case, median of the same iterations. Copies: kernels with as many SMs that move one row for each (token, rank) between the same memory in the fastest shape of those tried, places known before; the ranks meet before and after. Dispatch also quantises, counts, and writes a row to each of its experts.',
} as const;

export type CudaLowLatencyBenchReport = NonNullable<Awaited<ReturnType<typeof runCudaLowLatencyBench>>>;

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with WL_MEMORY
 * when windows or results do not fit, and with WL_CHECK when a bare copy leaves other rows than dispatch.
 */
export async function runCudaLowLatencyBench(
  world: World,
  device: CudaDevice,
  options: LowLatencyBenchOptions & { readonly isOneShape: boolean },
  progress?: Progress,
) {
  const { workload, variant, dtypes, iterations, warmup, pairs, numSms } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const gpuMachine = await gpuMachineDocument(world, device);
  using tools = await makeCudaTools(world, device, full, options.isOneShape);
  await using buffer = await EpBuffer.create(world, device, {
    ...benchBufferConfig(full),
    numSms: numSms || device.properties.multiprocessors,
  });
  const copies = await makeBareCopies(tools, buffer, dtypes);
  await using calls = await LowLatencyCalls.create(world, device, options, tools);
  using made = await makeCases(device, calls, dtypes, pairs);
  const cases: LowLatencyCase[] = [
    ...[...copies].map(([name, { launch }]) => ({ name, dtype: dtypeOf(name), run: launch })),
    ...made.cases,
  ];
  const [samples, record] = await recordRun(world, () =>
    measureInTurn(world, cases, { warmup, iterations, progress }, async (one) => {
      await one.prepare?.();
      if (one.prepare !== undefined) await calls.settle();
      const time = await tools.stopwatch.onDevice(one.run);
      await one.after?.();
      return { time: time / (one.calls ?? 1) };
    }),
  );
  await world.barrier('bench-done');
  if (record === undefined || gpuMachine === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.low-latency.cuda/1' as const,
    method,
    variant,
    workload,
    warmup,
    iterations,
    pairs,
    ...record,
    gpuMachine,
    windowBytes: calls.ll.size.bytes,
    cases: cases.map(({ name, dtype, copy }, index) => {
      const times = samples[index]!.slowest('time');
      const bare = samples[cases.findIndex((other) => other.name === copy)]?.slowest('time');
      return {
        name,
        dtype,
        microseconds: percentilesOf(times),
        ...(bare && { ratioToCopy: median(bare.map((time, at) => time / times[at]!)) }),
      };
    }),
  };
}

function dtypeOf(copy: string): RowDtype {
  return copy === pushName('fp8') ? 'fp8' : 'bf16';
}

/** Collective: makes calls, so that all memory is there and all graphs can be recorded. */
async function makeCases(
  device: CudaDevice,
  calls: LowLatencyCalls,
  dtypes: readonly RowDtype[],
  pairs: number,
): Promise<Disposable & { readonly cases: readonly LowLatencyCase[] }> {
  const cases: LowLatencyCase[] = [];
  const graphs: CudaGraph[] = [];
  for (const dtype of dtypes) {
    for (let parity = 0; parity < 2; parity += 1) await calls.pair(dtype);
  }
  const record = async (work: () => Promise<unknown>): Promise<() => void> => {
    const graph = await device.capture(async () => {
      for (let at = 0; at < pairs; at += 1) await work();
    });
    graphs.push(graph);
    return () => graph.launch();
  };
  for (const dtype of dtypes) {
    for (const one of singleCases(calls, dtype, dtype === dtypes.at(-1))) {
      if (one.name === `dispatch ${dtype}`) cases.push({ ...one, copy: pushName(dtype) });
      else cases.push(one.name === 'combine bf16' ? { ...one, copy: pullName } : one);
    }
    const chained = { dtype, calls: pairs };
    const dispatches = await record(() => calls.dispatch(dtype));
    cases.push({ ...chained, name: `dispatch ${dtype}, chained`, copy: pushName(dtype), run: dispatches });
    cases.push({ ...chained, name: `pair ${dtype}, chained`, run: await record(() => calls.pair(dtype)) });
  }
  const last = await calls.dispatch('bf16');
  const combines = await record(() => calls.combine(last));
  // The chain combines the result of whichever dispatch came last into that memory: rows of the same shape.
  cases.push({ name: 'combine bf16, chained', dtype: 'bf16', calls: pairs, copy: pullName, run: combines });
  await calls.settle();
  return {
    cases,
    [Symbol.dispose]: () => {
      for (const graph of graphs) graph[Symbol.dispose]();
    },
  };
}
