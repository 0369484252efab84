// Cached dispatch and combine of EpBuffer on GPUs in many shapes beside the bare copies, to find the rule that chooses one.
import { type TriedShapes, tryShapes } from '../../../../group/tried-shapes.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { EpBuffer } from '../../../../ep/index.ts';
import type { Settings } from '../../../../settings/settings.ts';
import type { World } from '../../../../world/index.ts';
import { interleave, type Rounds } from '../../interleaved.ts';
import { type MachineDocument, machineDocument } from '../../machine.ts';
import { benchBufferConfig } from '../ep-memory.ts';
import { checkEpWorkload, type EpWorkload } from '../ep-workload.ts';
import type { CopyShape } from './copy-shape.ts';
import { makePull, makePush } from './ep-copies.ts';
import { inputRows, makeCudaEpInputs, type RowDtype } from './ep-inputs.ts';
import { type GpuMachineDocument, gpuMachineDocument } from './gpu-machine.ts';
import { CudaMeeting } from './meeting.ts';
import { CudaStopwatch } from './stopwatch.ts';
import { sweptShapes } from './swept-shapes.ts';
import { type Summary, summarize, summarizeRatios } from '../../statistics.ts';

export interface ShapeSweepOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  readonly numSms: number;
  readonly iterations: number;
  readonly warmup: number;
}

export interface ShapeTimes {
  /** "dispatch bf16 cached", "dispatch fp8 cached" or "combine bf16". */
  readonly name: string;
  readonly microseconds: Summary;
  /** Time of the bare copy in the same iteration over that of the call. */
  readonly ratioToCopy: Summary;
}

export interface ShapeResult {
  /** Empty for the shapes that the rules choose. */
  readonly shape: TriedShapes;
  readonly calls: readonly ShapeTimes[];
}

export interface ShapeSweepReport {
  readonly schema: 'weftline.bench.ep.cuda.shapes/1';
  readonly date: string;
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly numSms: number;
  readonly warmup: number;
  readonly iterations: number;
  readonly machine: MachineDocument;
  readonly gpuMachine: GpuMachineDocument;
  readonly settings: Settings;
  readonly copies: Readonly<Record<string, { readonly shape: CopyShape; readonly microseconds: Summary }>>;
  readonly results: readonly ShapeResult[];
}

/** Collective. Returns the result document on rank 0 and undefined elsewhere. */
export async function runShapeSweep(
  world: World,
  device: CudaDevice,
  options: ShapeSweepOptions,
  progress?: (done: number, total: number) => void,
): Promise<ShapeSweepReport | undefined> {
  const { workload, dtypes, numSms, warmup, iterations } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const gpuMachine = await gpuMachineDocument(world, device);
  const inputs = await makeCudaEpInputs(world, device, full);
  using meeting = await CudaMeeting.create(world, device);
  using stopwatch = new CudaStopwatch(meeting);
  const config = { ...benchBufferConfig(full), numSms };
  await using first = await EpBuffer.create(world, device, config);
  const counter = await device.tensor('i32', [1], new Int32Array(1));
  const tools = { meeting, stopwatch, inputs, buffer: first, counter, isOneShape: false };
  const { bf16, topkIdx, topkWeights, out } = inputs;
  // Leaves the rows that the bare pull is checked with.
  (await first.dispatch({ x: bf16, topkIdx, topkWeights })).handle.dispose();
  const pull = await makePull(tools);
  const pushes = new Map<RowDtype, Awaited<ReturnType<typeof makePush>>>();
  for (const dtype of dtypes) pushes.set(dtype, await makePush(tools, dtype));
  const shapes = sweptShapes(numSms);
  const copyTimes: Record<string, number[]> = {};
  const results: ShapeResult[] = [];
  for (const [index, shape] of shapes.entries()) {
    tryShapes(device, shape);
    await using buffer = await EpBuffer.create(world, device, config);
    tryShapes(device, {});
    const { handle } = await buffer.dispatch({ x: bf16, topkIdx, topkWeights });
    const dispatches = dtypes.map((dtype) => ({
      name: `dispatch ${dtype} cached`,
      copy: pushes.get(dtype)!.launch,
      run: (): unknown => buffer.dispatch({ x: inputRows(inputs, dtype), handle }),
    }));
    const combine = {
      name: 'combine bf16',
      copy: pull.launch,
      run: (): unknown => buffer.combine({ x: buffer.combineInput(handle), handle, out }),
    };
    const calls = [...(shape.gather ? [] : dispatches), ...(shape.sending ? [] : [combine])];
    const rounds = { warmup, iterations };
    const times = await timeCalls(world, stopwatch, calls, rounds);
    results.push({
      shape,
      calls: calls.map(({ name }, at) => {
        const { call, copy } = times[at]!;
        (copyTimes[name] ??= []).push(...copy);
        return { name, microseconds: summarize(call), ratioToCopy: summarizeRatios(copy, call) };
      }),
    });
    progress?.(index + 1, shapes.length);
    handle.dispose();
    // Nobody releases its window while others still use it.
    await world.barrier('bench-shape');
  }
  counter.dispose();
  if (gpuMachine === undefined) return undefined;
  const copyShapes: Record<string, CopyShape> = { 'combine bf16': pull.shape };
  for (const [dtype, { shape }] of pushes) copyShapes[`dispatch ${dtype} cached`] = shape;
  return {
    schema: 'weftline.bench.ep.cuda.shapes/1',
    date: new Date().toISOString(),
    workload,
    numSms,
    warmup,
    iterations,
    machine: machineDocument(),
    gpuMachine,
    settings: world.settings,
    copies: Object.fromEntries(
      Object.entries(copyTimes).map(([name, times]) => [
        name,
        { shape: copyShapes[name]!, microseconds: summarize(times) },
      ]),
    ),
    results,
  };
}

interface TimedCall {
  readonly copy: () => void;
  readonly run: () => unknown;
}

/** Collective. Of the slowest rank, by iteration. */
async function timeCalls(
  world: World,
  stopwatch: CudaStopwatch,
  calls: readonly TimedCall[],
  rounds: Rounds,
): Promise<{ readonly call: number[]; readonly copy: number[] }[]> {
  const mine = calls.map(() => ({ call: [] as number[], copy: [] as number[] }));
  await interleave(calls.length * 2, rounds, async (index, iteration) => {
    const at = index >> 1;
    const { copy, run } = calls[at] as TimedCall;
    const time = await stopwatch.onDevice(index % 2 === 0 ? run : copy);
    if (iteration >= 0) mine[at]![index % 2 === 0 ? 'call' : 'copy'].push(time);
  });
  const ranks = await world.allGather('bench-shape-times', mine);
  const slowest = (at: number, of: 'call' | 'copy'): number[] =>
    mine[at]![of].map((_, iteration) => Math.max(...ranks.map((rank) => rank[at]![of][iteration] as number)));
  return mine.map((_, at) => ({ call: slowest(at, 'call'), copy: slowest(at, 'copy') }));
}
