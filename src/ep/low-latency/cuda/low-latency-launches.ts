// The kernels of an EpLowLatency on a GPU, prepared once: a block for each multiprocessor that a call takes.
import {
  LOW_LATENCY_MAX_BLOCKS,
  LOW_LATENCY_THREADS,
  type lowLatencyCombineArguments,
  type lowLatencyDispatchArguments,
  lowLatencyPhases,
  lowLatencyRows,
  lowLatencyTravels,
} from '../../../abi/low-latency.ts';
import type { Layout } from '../../../abi/layout.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { lowLatencyCombineKernels, lowLatencyDispatchKernels } from '../../../device/cuda/kernels/ep.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';
import type { CudaLowLatencyTables } from './low-latency-tables.ts';

type Names<L> = L extends Layout<infer Name> ? Name : never;
export type DispatchPlan = LaunchPlan<Names<typeof lowLatencyDispatchArguments>>;
export type CombinePlan = LaunchPlan<Names<typeof lowLatencyCombineArguments>>;

export interface LowLatencyLaunches {
  /** By what rows are sent as. */
  readonly dispatch: { readonly bf16: DispatchPlan; readonly fp8: DispatchPlan };
  readonly combine: CombinePlan;
  /** A block of the same kernel that waits until memory may be written. */
  readonly awaitBuffer: CombinePlan;
}

/**
 * Multiprocessors that calls leave by default. All blocks of a call must be resident, so a kernel that runs beside it must find
 * room: a call of EpBuffer or of a Communicator has 16 blocks, a kernel of the caller that polls mostly one.
 */
const SPARE_MULTIPROCESSORS = 16;

/** What a thread copies of a row at once, if the row can be divided so. */
const WIDE_BYTES = 16;

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLaunches(
  device: CudaDevice,
  config: Required<LowLatencyConfig>,
): Promise<LowLatencyLaunches> {
  const { numSms, elastic, layout, hidden } = config;
  const ELASTIC = Number(elastic);
  const values = { ELASTIC, RANK_MAJOR: Number(layout === 'rank-major') };
  const fp8Rows = hidden % WIDE_BYTES === 0 ? lowLatencyRows.fp8 : lowLatencyRows.fp8Narrow;
  const [bf16, fp8, { lowLatencyCombine }] = await Promise.all([
    device.loadKernels(lowLatencyDispatchKernels, { ...values, ROWS: lowLatencyRows.bf16 }),
    device.loadKernels(lowLatencyDispatchKernels, { ...values, ROWS: fp8Rows }),
    device.loadKernels(lowLatencyCombineKernels, { ELASTIC, TRAVELS: travelsOf(config) }),
  ]);
  // Each block counts calls for itself, so all launches have the same ones.
  const { multiprocessors, capability } = device.properties;
  const free = Math.max(multiprocessors - SPARE_MULTIPROCESSORS, Math.ceil(multiprocessors / 2));
  const grid = Math.min(numSms || free, multiprocessors, LOW_LATENCY_MAX_BLOCKS);
  // Being launched takes as long as a flag; the kernels wait for their predecessor themselves.
  const shape = { grid, block: LOW_LATENCY_THREADS, overlapPredecessor: capability.major >= 9 };
  return {
    dispatch: { bf16: bf16.lowLatencyDispatch.plan(shape), fp8: fp8.lowLatencyDispatch.plan(shape) },
    combine: lowLatencyCombine.plan(shape),
    awaitBuffer: lowLatencyCombine.plan({ grid: 1, block: 32 }),
  };
}

/** 2^32 over the experts of a rank, rounded up: exact for as many experts as there may be. */
function rankFactor(expertsPerRank: number): number {
  return expertsPerRank === 1 ? 0 : Math.floor(0xffffffff / expertsPerRank) + 1;
}

/** One of lowLatencyTravels. */
export function travelsOf({ layout, combineTravels }: Required<LowLatencyConfig>): number {
  if (layout === 'rank-major') return lowLatencyTravels.rankMajor;
  return combineTravels === 'choices' ? lowLatencyTravels.choices : lowLatencyTravels.rankSums;
}

interface BoundMemory {
  /** By rank: where its window is; 0 for those that kernels find by themselves. */
  readonly windows: readonly number[];
  readonly traps: TrapBox;
  readonly tables: Pick<CudaLowLatencyTables, 'blocks' | 'decisions' | 'droppedRows' | 'elastic'>;
  /** Of an elastic object: where the kernels find who takes part. */
  readonly board?: { readonly address: number; readonly stride: number; readonly table: number };
}

/** Addresses and counts that stay the same for all calls. */
export function bindLaunches(
  { dispatch, combine, awaitBuffer }: LowLatencyLaunches,
  { config, group, size }: LowLatencyScope,
  { windows, traps, tables, board }: BoundMemory,
): void {
  const dispatches = [dispatch.bf16, dispatch.fp8];
  for (const plan of [...dispatches, combine, awaitBuffer]) {
    const set = plan.arguments;
    for (const [index, address] of windows.entries()) set.set('peers', address, index);
    set.set('blocks', tables.blocks.address);
    set.set('trap', traps.address);
    set.set('ranks', group.size);
    set.set('rank', group.topology.scaleUpIndex);
    set.set('maxTokens', config.maxTokensPerRank);
    set.set('expertsPerRank', config.numExperts / group.size);
    set.set('capacity', config.maxTokensPerExpert);
    if (board === undefined) continue;
    set.set('board', board.address);
    set.set('boardStride', board.stride);
    set.set('table', board.table);
    set.set('decisions', tables.decisions.address);
    set.set('elastic', tables.elastic.address);
  }
  const isByChoice = travelsOf(config) === lowLatencyTravels.choices;
  for (const { arguments: set } of dispatches) {
    set.set('droppedRows', tables.droppedRows.address);
    set.set('hidden', config.hidden);
    set.set('slots', size.receiveSlots);
    set.set('experts', config.numExperts);
    set.set('rankFactor', rankFactor(config.numExperts / group.size));
    set.set('failOnOverflow', Number(config.overflow === 'fail'));
    set.set('sharesFirstRows', Number(isByChoice));
  }
  combine.arguments.set('rowBytes', config.hidden * 2);
  awaitBuffer.arguments.set('phases', lowLatencyPhases.buffer);
}
