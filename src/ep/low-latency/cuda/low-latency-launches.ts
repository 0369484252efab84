// The kernels of an EpLowLatency on a GPU, prepared once: a block for each multiprocessor that a call takes.
import type { lowLatencyCombineArguments, lowLatencyDispatchArguments } from '../../../abi/low-latency-arguments.ts';
import { LOW_LATENCY_MAX_BLOCKS, lowLatencyPhases, lowLatencyTravels } from '../../../abi/low-latency.ts';
import type { Layout } from '../../../abi/layout.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { lowLatencyCombineKernels, lowLatencyDispatchKernels } from '../../../device/cuda/kernels/low-latency.ts';
import type { LaunchPlan } from '../../../device/cuda/launch-plan.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import type { CudaWindow } from '../../../windows/cuda-window.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import type { CudaLowLatencyTables } from './low-latency-tables.ts';

type Names<L> = L extends Layout<infer Name> ? Name : never;
export type DispatchPlan = LaunchPlan<Names<typeof lowLatencyDispatchArguments>>;
export type CombinePlan = LaunchPlan<Names<typeof lowLatencyCombineArguments>>;

export interface LowLatencyLaunches {
  readonly dispatch: DispatchPlan;
  readonly combine: CombinePlan;
  /** A block of the same kernel that waits until memory may be written. */
  readonly awaitBuffer: CombinePlan;
}

const THREADS = 1024;

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLaunches(device: CudaDevice, numSms: number): Promise<LowLatencyLaunches> {
  const [{ lowLatencyDispatch }, { lowLatencyCombine }] = await Promise.all([
    device.loadKernels(lowLatencyDispatchKernels),
    device.loadKernels(lowLatencyCombineKernels),
  ]);
  // Each block counts calls for itself, so all launches have the same ones.
  const { multiprocessors } = device.properties;
  const grid = Math.min(numSms || multiprocessors, multiprocessors, LOW_LATENCY_MAX_BLOCKS);
  return {
    dispatch: lowLatencyDispatch.plan({ grid, block: THREADS }),
    combine: lowLatencyCombine.plan({ grid, block: THREADS }),
    awaitBuffer: lowLatencyCombine.plan({ grid: 1, block: 32 }),
  };
}

export interface BoundMemory {
  readonly window: CudaWindow;
  readonly traps: TrapBox;
  readonly tables: Pick<CudaLowLatencyTables, 'blocks' | 'droppedRows'>;
}

/** Addresses and counts that stay the same for all calls. */
export function bindLaunches(
  { dispatch, combine, awaitBuffer }: LowLatencyLaunches,
  { config, group }: LowLatencyScope,
  { window, traps, tables }: BoundMemory,
): void {
  for (const plan of [dispatch, combine, awaitBuffer]) {
    const set = plan.arguments;
    for (const [index, address] of window.addresses.entries()) set.set('peers', address, index);
    set.set('blocks', tables.blocks.address);
    set.set('trap', traps.address);
    set.set('ranks', group.size);
    set.set('rank', window.index);
    set.set('maxTokens', config.maxTokensPerRank);
    set.set('expertsPerRank', config.numExperts / group.size);
    set.set('capacity', config.maxTokensPerExpert);
  }
  const set = dispatch.arguments;
  const isRankMajor = config.layout === 'rank-major';
  const isByChoice = !isRankMajor && config.combineTravels === 'choices';
  set.set('droppedRows', tables.droppedRows.address);
  set.set('hidden', config.hidden);
  set.set('experts', config.numExperts);
  set.set('rankMajor', Number(isRankMajor));
  set.set('failOnOverflow', Number(config.overflow === 'fail'));
  set.set('sharesFirstRows', Number(isByChoice));
  combine.arguments.set('rowBytes', config.hidden * 2);
  const { rankMajor, choices, rankSums } = lowLatencyTravels;
  combine.arguments.set('travels', isRankMajor ? rankMajor : isByChoice ? choices : rankSums);
  awaitBuffer.arguments.set('phases', lowLatencyPhases.buffer);
}
