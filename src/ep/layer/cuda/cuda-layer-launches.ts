// The kernels of a layer on a GPU, prepared once: blocks, warps, shared memory, and the addresses that stay the same.
import { elementFormats } from '../../../abi/element-formats.ts';
import { EP_SYNC_BYTES } from '../../../abi/ep-arguments.ts';
import {
  LAYER_COUNTERS,
  LAYER_SECTION_BYTES,
  type layerBarrierArguments,
  type layerCombineArguments,
  type layerDispatchArguments,
  type layerPlaceArguments,
  layerPlan,
  type layerPrepareArguments,
  type layerSumArguments,
  type layerWidenArguments,
} from '../../../abi/layer-arguments.ts';
import type { Layout } from '../../../abi/layout.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import {
  layerCallKernels,
  layerCombineKernels,
  layerDispatchKernels,
  layerPlaceKernels,
  layerPrepareKernels,
} from '../../../device/cuda/kernels/layer.ts';
import type { LaunchPlan } from '../../../device/cuda/launch-plan.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { TensorAllocator } from '../../../device/tensor-set.ts';
import { exchangeRecordBytes } from '../../../abi/exchange-record.ts';
import { BARRIER_BYTES, gatherShape, stagingShape } from '../../../collective/cuda-shapes.ts';
import type { CudaLayerMemory } from './cuda-layer-memory.ts';
import type { CudaLayerPlan } from './cuda-layer-plan.ts';
import type { EPConfig } from '../ep-config.ts';
import type { LayerEngineOptions } from '../layer-engine.ts';

type Names<L> = L extends Layout<infer Name> ? Name : never;

export interface LayerLaunches {
  readonly prepare: LaunchPlan<Names<typeof layerPrepareArguments>>;
  readonly place: LaunchPlan<Names<typeof layerPlaceArguments>>;
  readonly dispatch: LaunchPlan<Names<typeof layerDispatchArguments>>;
  readonly sumRepeated: LaunchPlan<Names<typeof layerSumArguments>>;
  readonly combine: LaunchPlan<Names<typeof layerCombineArguments>>;
  readonly barrier: LaunchPlan<Names<typeof layerBarrierArguments>>;
  readonly widen: LaunchPlan<Names<typeof layerWidenArguments>>;
  /** Words of 32 tokens that a block counts at once. */
  readonly tileWords: number;
}

/** Threads of the prepare kernel, one for each token of a tile at most. */
const PREPARE_THREADS = 512;
const PLACE_THREADS = 1024;
/** One for each rank. */
const BARRIER_THREADS = 32;
const WIDEN_THREADS = 256;
/** Part of the blocks that send, where others copy what came: rows on the links hold up those behind them on one SM. */
const SEND_SHARE = 0.6;
/** Sums of rows from this GPU's own memory, which is nearer than the links, need more warps to keep it busy. */
const SUM_WARPS = 14;
/** What the kernels declare themselves. */
const STATIC_BYTES = 1024;

/** Device memory that the kernels of one dispatch hand to each other. */
export interface LayerScratch {
  readonly repeatTable: Tensor<'i32'>;
  readonly tileCounts: Tensor<'i32'>;
  readonly firstRows: Tensor<'i32'>;
  readonly blockStarts: Tensor<'i32'>;
  readonly plan: Tensor<'u8'>;
  /** i32, see LayerPrepareArguments; zero between kernels. */
  readonly counter: Tensor<'i32'>;
}

export function makeLayerScratch(
  tensors: TensorAllocator,
  { maxTokens, numExperts, worldSize }: EPConfig,
  tileWords: number,
): LayerScratch {
  const bins = worldSize + numExperts;
  return {
    repeatTable: tensors.empty('i32', [maxTokens, worldSize]),
    tileCounts: tensors.empty('i32', [Math.ceil(maxTokens / (tileWords * 32)) + 1, bins]),
    firstRows: tensors.empty('i32', [bins]),
    blockStarts: tensors.empty('i32', [numExperts + 1]),
    plan: tensors.empty('u8', [layerPlan.size]),
    counter: tensors.empty('i32', [LAYER_COUNTERS]),
  };
}

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLayerLaunches(
  device: CudaDevice,
  config: EPConfig,
  { enableLocalCombine, numSm, useAot }: LayerEngineOptions,
): Promise<LayerLaunches> {
  const ELEMENT = elementFormats[config.tokenDtype];
  const [
    { layerPrepare },
    { layerPlace },
    { layerDispatch },
    { layerCombine, layerSumRepeated },
    { layerBarrier, layerWiden },
  ] = await Promise.all([
    device.loadKernels(layerPrepareKernels, {}, { useAot }),
    device.loadKernels(layerPlaceKernels, {}, { useAot }),
    device.loadKernels(layerDispatchKernels, {}, { useAot }),
    device.loadKernels(layerCombineKernels, { ELEMENT }, { useAot }),
    device.loadKernels(layerCallKernels, {}, { useAot }),
  ]);
  const { multiprocessors, sharedBytesPerBlock } = device.properties;
  const grid = Math.min(numSm, multiprocessors);
  const room = sharedBytesPerBlock - BARRIER_BYTES - STATIC_BYTES;
  const { rowBytes } = config;
  const binBytes = (config.worldSize + config.numExperts) * 4;
  // As many tokens for a block as give every block some, and no more than its threads and its memory serve.
  const fitting = Math.min(PREPARE_THREADS / 32, Math.floor(room / binBytes));
  const tileWords = Math.max(1, Math.min(fitting, Math.ceil(config.maxTokens / 32 / grid)));
  const perRank = Math.min(config.topk, config.numExpertsPerRank);
  // Rows that came once are copied only where a token can have several experts, and the rank has others to get it from.
  const copies = perRank > 1 && config.worldSize > 1;
  const sendBlocks = copies ? Math.ceil(grid * SEND_SHARE) : grid;
  const staging = stagingShape(room, rowBytes);
  const pulls = enableLocalCombine ? Math.min(config.topk, config.worldSize) : config.topk;
  const pulled = gatherShape(room, rowBytes, { usual: pulls, most: pulls });
  // Most tokens that have several rows somewhere have two or three.
  const summed = gatherShape(room, rowBytes, { usual: Math.min(2, perRank), most: perRank, warps: SUM_WARPS });
  const launches = {
    prepare: layerPrepare.plan({ grid, block: PREPARE_THREADS, sharedBytes: tileWords * binBytes }),
    place: layerPlace.plan({ grid: 1, block: PLACE_THREADS }),
    // Blocks that copy wait for other ranks, so all blocks must be there.
    dispatch: layerDispatch.plan({ grid, block: staging.block, sharedBytes: staging.sharedBytes, cooperative: true }),
    sumRepeated: layerSumRepeated.plan({ grid, block: summed.block, sharedBytes: summed.sharedBytes }),
    combine: layerCombine.plan({ grid, block: pulled.block, sharedBytes: pulled.sharedBytes }),
    barrier: layerBarrier.plan({ grid: 1, block: BARRIER_THREADS }),
    widen: layerWiden.plan({ grid, block: WIDEN_THREADS }),
    tileWords,
  };
  launches.dispatch.arguments.set('stageBytes', staging.partBytes);
  launches.dispatch.arguments.set('sendBlocks', sendBlocks);
  launches.dispatch.arguments.set('copies', copies ? 1 : 0);
  for (const [plan, { stageBytes, partBytes }] of [
    [launches.sumRepeated, summed],
    [launches.combine, pulled],
  ] as const) {
    plan.arguments.set('stageBytes', stageBytes);
    plan.arguments.set('partBytes', partBytes);
  }
  for (const plan of [launches.prepare, launches.dispatch]) plan.arguments.set('tileWords', tileWords);
  launches.prepare.arguments.set('localCombine', enableLocalCombine ? 1 : 0);
  launches.combine.arguments.set('onePerRank', enableLocalCombine ? 1 : 0);
  return launches;
}

/** Addresses and counts that stay the same for all calls of a layer. */
export function bindLayerLaunches(
  { prepare, place, dispatch, sumRepeated, combine, barrier }: LayerLaunches,
  config: EPConfig,
  bound: {
    readonly memory: CudaLayerMemory;
    readonly scratch: LayerScratch;
    readonly hostPlan: CudaLayerPlan;
    readonly traps: TrapBox;
  },
): void {
  const { memory, scratch, hostPlan, traps } = bound;
  const { worldSize, rank, topk, numExperts } = config;
  for (const plan of [prepare, place, dispatch, combine, barrier]) {
    for (const [peer, address] of memory.control.addresses.entries()) plan.arguments.set('peers', address, peer);
    plan.arguments.set('ranks', worldSize);
    plan.arguments.set('rank', rank);
    plan.arguments.set('trap', traps.address);
  }
  for (const plan of [prepare, place, dispatch, sumRepeated, combine]) plan.arguments.set('topkColumns', topk);
  for (const plan of [prepare, place, dispatch]) plan.arguments.set('plan', scratch.plan.address);
  for (const plan of [prepare, dispatch, combine]) plan.arguments.set('counter', scratch.counter.address);
  for (const plan of [prepare, place]) {
    plan.arguments.set('hostPlan', hostPlan.address);
    plan.arguments.set('blockStarts', scratch.blockStarts.address);
    plan.arguments.set('exchangeOffset', EP_SYNC_BYTES + LAYER_SECTION_BYTES);
    plan.arguments.set('recordWords', exchangeRecordBytes({ ranks: worldSize, experts: numExperts, hosts: 0 }) / 4);
  }
  for (const plan of [prepare, dispatch]) {
    plan.arguments.set('experts', numExperts);
    plan.arguments.set('repeatTable', scratch.repeatTable.address);
    plan.arguments.set('tileCounts', scratch.tileCounts.address);
    plan.arguments.set('firstRows', scratch.firstRows.address);
  }
  for (const plan of [dispatch, sumRepeated, combine]) plan.arguments.set('rowBytes', config.rowBytes);
  prepare.arguments.set('maxTokens', config.maxTokens);
  prepare.arguments.set('hostExperts', hostPlan.expertsAddress);
  dispatch.arguments.set('sectionOffset', EP_SYNC_BYTES);
  place.arguments.set('expertsPerRank', config.numExpertsPerRank);
}

/** What follows the output, which may have been replaced since the last call. */
export function bindOutput(launches: LayerLaunches, memory: CudaLayerMemory): void {
  const { prepare, place, dispatch, sumRepeated, combine } = launches;
  const { regions, capacityRows } = memory.size;
  for (const plan of [place, dispatch, combine]) {
    for (const [index, address] of memory.outputAddresses.entries()) plan.arguments.set('outputs', address, index);
  }
  prepare.arguments.set('capacityRows', capacityRows);
  place.arguments.set('sourceOffset', regions.sourceToken.offset);
  dispatch.arguments.set('rowsOffset', regions.rows.offset);
  combine.arguments.set('rowsOffset', regions.expertRows.offset);
  dispatch.arguments.set('weightsOffset', regions.weights.offset);
  dispatch.arguments.set('firstRowOffset', regions.firstRow.offset);
  dispatch.arguments.set('duplicatesOffset', regions.duplicates.offset);
  dispatch.arguments.set('repeatedOffset', regions.repeated.offset);
  sumRepeated.arguments.set('rows', memory.regionAddress('expertRows'));
}
