// Cached dispatch and combine of EpBuffer on GPUs in many shapes beside the bare copies, to find the rule that chooses one.
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { EpBuffer } from '../../../ep/index.ts';
import { type TriedShapes, tryShapes } from '../../../group/cuda-shapes.ts';
import type { World } from '../../../world/index.ts';
import { measureInTurn, type Progress, summarize, summarizeRatios } from '../harness.ts';
import { gpuMachineDocument, recordRun } from '../machine.ts';
import { inputRows, makeBareCopies, makeCudaTools, pullName, pushName, type RowDtype } from './cuda-copies.ts';
import { benchBufferConfig } from './ep-memory.ts';
import { checkEpWorkload, type EpWorkload } from './ep-workload.ts';

const SENDING_BLOCKS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24] as const;
const SENDING_WARPS = [1, 2, 3, 4, 5, 6, 8, 12] as const;
/** Of rows of 7168 elements. Larger ones would leave room for fewer warps than are asked for. */
const SENDING_PARTS = [8192, 4096, 2048] as const;
const GATHER_BLOCKS = [7, 8, 10, 12, 14, 16, 20, 24] as const;
/** The kernel takes at most 16. */
const GATHER_WARPS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16] as const;

/** Those of the rules first; then each with at most so many blocks. */
export function sweptShapes(numSms: number): TriedShapes[] {
  const fits = (blocks: number): boolean => blocks <= numSms;
  const sending = SENDING_PARTS.flatMap((mostPartBytes) =>
    SENDING_WARPS.flatMap((warps) =>
      SENDING_BLOCKS.filter(fits).map((blocks) => ({ sending: { blocks, warps, mostPartBytes } })),
    ),
  );
  const gather = GATHER_WARPS.flatMap((warps) =>
    GATHER_BLOCKS.filter(fits).map((blocks) => ({ gather: { blocks, warps } })),
  );
  return [{}, ...sending, ...gather];
}

export interface ShapeSweepOptions {
  readonly workload: Omit<EpWorkload, 'dtype'>;
  readonly dtypes: readonly RowDtype[];
  readonly numSms: number;
  readonly iterations: number;
  readonly warmup: number;
}

export type ShapeSweepReport = NonNullable<Awaited<ReturnType<typeof runShapeSweep>>>;

/** Collective. Returns the result document on rank 0 and undefined elsewhere. */
export async function runShapeSweep(world: World, device: CudaDevice, options: ShapeSweepOptions, progress?: Progress) {
  const { workload, dtypes, numSms, warmup, iterations } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const gpuMachine = await gpuMachineDocument(world, device);
  using tools = await makeCudaTools(world, device, full, false);
  const { stopwatch, bf16, topkIdx, topkWeights, out } = tools;
  const config = { ...benchBufferConfig(full), numSms };
  await using first = await EpBuffer.create(world, device, config);
  const copies = await makeBareCopies(tools, first, dtypes);
  const copyTimes: Record<string, { readonly copy: string; readonly times: number[] }> = {};
  const shapes = sweptShapes(numSms);
  const [results, record] = await recordRun(world, async () => {
    const all = [];
    for (const [index, shape] of shapes.entries()) {
      tryShapes(device, shape);
      await using buffer = await EpBuffer.create(world, device, config);
      tryShapes(device, {});
      const { handle } = await buffer.dispatch({ x: bf16, topkIdx, topkWeights });
      const dispatches = dtypes.map((dtype) => ({
        name: `dispatch ${dtype} cached`,
        copy: pushName(dtype),
        run: (): unknown => buffer.dispatch({ x: inputRows(tools, dtype), handle }),
      }));
      const combine = {
        name: 'combine bf16',
        copy: pullName,
        run: (): unknown => buffer.combine({ x: buffer.combineInput(handle), handle, out }),
      };
      const calls = [...(shape.gather ? [] : dispatches), ...(shape.sending ? [] : [combine])];
      const sides = calls.flatMap(({ run, copy }) => [run, copies.get(copy)!.launch]);
      const samples = await measureInTurn(world, sides, { warmup, iterations }, async (run) => ({
        time: await stopwatch.onDevice(run),
      }));
      all.push({
        /** Empty for the shapes that the rules choose. */
        shape,
        calls: calls.map(({ name, copy }, at) => {
          const [own, bare] = [samples[at * 2]!.slowest('time'), samples[at * 2 + 1]!.slowest('time')];
          (copyTimes[name] ??= { copy, times: [] }).times.push(...bare);
          return { name, microseconds: summarize(own), ratioToCopy: summarizeRatios(bare, own) };
        }),
      });
      progress?.(index + 1, shapes.length);
      handle.dispose();
      // Nobody releases its window while others still use it.
      await world.barrier('bench-shape');
    }
    return all;
  });
  if (record === undefined || gpuMachine === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep.cuda.shapes/1' as const,
    workload,
    numSms,
    warmup,
    iterations,
    ...record,
    gpuMachine,
    copies: Object.fromEntries(
      Object.entries(copyTimes).map(([name, { copy, times }]) => [
        name,
        { shape: copies.get(copy)!.shape, microseconds: summarize(times) },
      ]),
    ),
    results,
  };
}
