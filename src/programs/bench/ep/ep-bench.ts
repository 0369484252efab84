// The expert-parallel bench: makes the cases, times them in turn on all ranks, and describes machine and result.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { deepEpConfig, isDeepEpRankCount } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { makeEpCases } from './ep-cases.ts';
import { type EpBenchReport, method, summarizeCases } from './ep-results.ts';
import { requireAddressSpace } from './ep-memory.ts';
import { checkEpWorkload, combineRowBytes, type EpWorkload } from './ep-workload.ts';
import { runInterleaved } from '../interleaved.ts';
import { loadAverage, machineDocument } from '../machine.ts';
import { sampleMachine } from './sample-machine.ts';

export interface EpBenchOptions {
  readonly workload: EpWorkload;
  readonly iterations: number;
  readonly warmup: number;
  /** False leaves EPAll2AllLayer out, which needs more memory than all the rest. */
  readonly layer: boolean;
}

/**
 * Collective. Returns the result document on rank 0 and undefined elsewhere. Fails with WL_INVALID_ARGUMENT, with
 * WL_MEMORY or WL_SHARED_MEMORY when the windows do not fit, and with WL_CHECK when a rank's rows are not as expected.
 */
export async function runEpBench(
  world: World,
  device: CpuDevice,
  options: EpBenchOptions,
  progress?: (done: number, total: number) => void,
): Promise<EpBenchReport | undefined> {
  const { workload, iterations, warmup } = options;
  checkEpWorkload(workload);
  requireAddressSpace(workload, options.layer, device.space.limit);
  await using made = await makeEpCases(world, device, workload, options.layer);
  const { group, cases } = made;
  const before = await sampleMachine(world);
  const loadBefore = loadAverage();
  const times = await runInterleaved(group, cases, { warmup, iterations, progress });
  const loadAfter = loadAverage();
  const after = await sampleMachine(world);
  // Nobody releases its windows while others still work.
  await world.barrier('bench-done');
  if (before === undefined || after === undefined) return undefined;
  return {
    schema: 'weftline.bench.ep/1',
    date: new Date().toISOString(),
    method,
    workload,
    warmup,
    iterations,
    machine: machineDocument(),
    settings: world.settings,
    loadAverage: { before: loadBefore, after: loadAfter },
    placement: { before, after },
    memory: {
      bufferWindowsBytes: made.bufferWindowsBytes,
      layerWindowsBytes: made.layerWindowsBytes,
      deviceBytes: device.space.used,
      deepEpHintBytes: deepEpHint(workload),
    },
    cases: summarizeCases(times, cases, world.size),
  };
}

/** DeepEP makes one buffer for both directions, so the larger hint counts; undefined for rank counts it cannot serve. */
function deepEpHint(workload: EpWorkload): number | undefined {
  const { ranks } = workload;
  if (!isDeepEpRankCount(ranks)) return undefined;
  const hints = (['dispatch', 'combine'] as const).map((operation) =>
    deepEpConfig(operation, ranks).getNvlBufferSizeHint(combineRowBytes(workload), ranks),
  );
  return Math.max(...hints);
}
