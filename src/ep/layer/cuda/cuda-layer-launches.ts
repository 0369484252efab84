// The kernels of a layer on a GPU, prepared once: blocks, warps, shared memory, and the addresses that stay the same.
import { elementFormats } from '../../../abi/element-formats.ts';
import {
  LAYER_COUNTERS,
  LAYER_SECTION_BYTES,
  layerHostPlan,
  layerPlan,
  layerRecordWords,
} from '../../../abi/ep-layer.ts';
import { EP_SYNC_BYTES, epStatus } from '../../../abi/ep.ts';
import { exchangeRecordBytes } from '../../../abi/exchange-record.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import type { TensorAllocator } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { BARRIER_BYTES, gatherShape, stagingShape } from '../../../group/cuda-shapes.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { countedHosts } from '../../across-hosts/network-size.ts';
import { badChoice, choiceAt, recordMismatch } from '../../buffer/dispatch-layout.ts';
import type { DispatchCombineContext } from '../dispatch-combine-context.ts';
import type { EPConfig } from '../ep-config.ts';
import { PlanMemory } from '../../buffer/cuda/cuda-launches.ts';
import { layerCapacityError, throwIfOutOfBlock, throwIfRepeated } from '../expert-plan.ts';
import type { LayerInput } from '../layer-arguments.ts';
import type { LayerEngineOptions } from '../layer-engine.ts';
import type { CudaLayerMemory } from './cuda-layer-memory.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

export type LayerLaunches = Awaited<ReturnType<typeof loadLayerLaunches>>;

/** Threads of the prepare kernel, one for each token of a tile at most. */
const PREPARE_THREADS = 512;
const PLACE_THREADS = 1024;
/** One for each rank. */
const BARRIER_THREADS = 32;
const WIDEN_THREADS = 256;
/** Part of the blocks that send, where others copy what came: rows on the links hold up those behind them on one SM. */
const SEND_SHARE = 0.6;
/** What the kernels declare themselves; those of a group on several hosts more. */
const STATIC_BYTES = 1024;
const STATIC_BYTES_ACROSS_HOSTS = 16_384;
/** Threads of a block of a combine across hosts. */
const THREADS_ACROSS_HOSTS = 512;

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

/** Other hosts than this one. */
function waysOf({ topology: { hosts } }: RankGroup): number {
  return hosts.length - 1;
}

/** What a tile's tokens are counted by: ranks, experts, other hosts. */
function binsOf(group: RankGroup, { worldSize, numExperts }: EPConfig): number {
  return worldSize + numExperts + waysOf(group);
}

export function makeLayerScratch(
  tensors: TensorAllocator,
  { group, config }: Pick<DispatchCombineContext, 'group' | 'config'>,
  tileWords: number,
): LayerScratch {
  const { maxTokensPerRank, numExperts, worldSize } = config;
  const bins = binsOf(group, config);
  return {
    repeatTable: tensors.empty('i32', [maxTokensPerRank, worldSize]),
    tileCounts: tensors.empty('i32', [Math.ceil(maxTokensPerRank / (tileWords * 32)) + 1, bins]),
    firstRows: tensors.empty('i32', [bins]),
    blockStarts: tensors.empty('i32', [numExperts + 1]),
    plan: tensors.empty('u8', [layerPlan.size]),
    counter: tensors.empty('i32', [LAYER_COUNTERS]),
  };
}

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLayerLaunches(
  device: CudaDevice,
  { group, config }: Pick<DispatchCombineContext, 'group' | 'config'>,
  { enableLocalCombine, numSms, useAot }: LayerEngineOptions,
) {
  const isOneHost = waysOf(group) === 0;
  const HOSTS = isOneHost ? 0 : 1;
  const ELEMENT = elementFormats[config.tokenDtype];
  const [
    { layerPrepare },
    { layerPlace },
    { layerDispatch },
    { layerCombine, layerSumRepeated },
    { layerBarrier, layerWiden },
  ] = await Promise.all([
    device.loadKernels(kernelFiles.layerPrepare, { HOSTS }, { useAot }),
    device.loadKernels(kernelFiles.layerPlace, {}, { useAot }),
    device.loadKernels(kernelFiles.layerDispatch, { HOSTS }, { useAot }),
    device.loadKernels(kernelFiles.layerCombine, { ELEMENT, HOSTS }, { useAot }),
    device.loadKernels(kernelFiles.layerCall, {}, { useAot }),
  ]);
  const { multiprocessors, sharedBytesPerBlock } = device.properties;
  const grid = Math.min(numSms, multiprocessors);
  const room = sharedBytesPerBlock - BARRIER_BYTES - (isOneHost ? STATIC_BYTES : STATIC_BYTES_ACROSS_HOSTS);
  const { rowBytes } = config;
  const binBytes = binsOf(group, config) * 4;
  // A block takes as many tokens as give every block some, and no more than its threads and its memory serve.
  const fitting = Math.min(PREPARE_THREADS / 32, Math.floor(room / binBytes));
  const tileWords = Math.max(1, Math.min(fitting, Math.ceil(config.maxTokensPerRank / 32 / grid)));
  const perRank = Math.min(config.maxTopk, config.numExpertsPerRank);
  // Rows that came once are copied only where a token can have several experts, and the rank has others to get it from.
  const copies = perRank > 1 && group.topology.scaleUpRanks.length > 1;
  const sendBlocks = copies ? Math.ceil(grid * SEND_SHARE) : grid;
  const staging = stagingShape(room, rowBytes);
  const pulls = enableLocalCombine ? Math.min(config.maxTopk, config.worldSize) : config.maxTopk;
  const pulled = gatherShape(room, rowBytes, { usual: pulls, most: pulls });
  // Most tokens that have several rows somewhere have two or three.
  const summed = gatherShape(room, rowBytes, { usual: Math.min(2, perRank), most: config.maxTopk });
  const launches = {
    prepare: layerPrepare.plan({ grid, block: PREPARE_THREADS, sharedBytes: tileWords * binBytes }),
    place: layerPlace.plan({ grid: 1, block: PLACE_THREADS }),
    // Blocks that copy wait for other ranks, so all blocks must be there.
    dispatch: layerDispatch.plan({ grid, block: staging.block, sharedBytes: staging.sharedBytes, cooperative: true }),
    sumRepeated: layerSumRepeated.plan({ grid, block: summed.block, sharedBytes: summed.sharedBytes }),
    combine: isOneHost
      ? layerCombine.plan({ grid, block: pulled.block, sharedBytes: pulled.sharedBytes })
      : layerCombine.plan({ grid, block: THREADS_ACROSS_HOSTS, sharedBytes: BARRIER_BYTES }),
    barrier: layerBarrier.plan({ grid: 1, block: BARRIER_THREADS }),
    widen: layerWiden.plan({ grid, block: WIDEN_THREADS }),
    /** Words of 32 tokens that a block counts at once. */
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
  { group, config }: Pick<DispatchCombineContext, 'group' | 'config'>,
  bound: {
    /** EpNetwork; 0 in a group on one host. */
    readonly network: number;
    readonly memory: CudaLayerMemory;
    readonly scratch: LayerScratch;
    readonly hostPlan: CudaLayerPlan;
    readonly traps: TrapBox;
    /** Address of EpLastEpoch. */
    readonly lastEpochAddress: number;
  },
): void {
  const { memory, scratch, hostPlan, traps, lastEpochAddress, network } = bound;
  const { worldSize, rank, maxTopk: topk, numExperts } = config;
  const { topology } = group;
  for (const plan of [prepare, place, dispatch, combine, barrier]) {
    for (const [peer, address] of memory.control.addresses.entries()) plan.arguments.set('peers', address, peer);
    plan.arguments.set('ranks', topology.scaleUpRanks.length);
    plan.arguments.set('rank', topology.scaleUpIndex);
    plan.arguments.set('trap', traps.address);
    plan.arguments.set('lastEpoch', lastEpochAddress);
  }
  for (const plan of [prepare, place, dispatch, sumRepeated, combine]) plan.arguments.set('topkColumns', topk);
  for (const plan of [prepare, place, dispatch]) plan.arguments.set('plan', scratch.plan.address);
  for (const plan of [prepare, dispatch, combine]) plan.arguments.set('counter', scratch.counter.address);
  const recordBytes = exchangeRecordBytes({ ranks: worldSize, experts: numExperts, hosts: countedHosts(group) });
  for (const plan of [prepare, place]) {
    plan.arguments.set('hostPlan', hostPlan.address);
    plan.arguments.set('blockStarts', scratch.blockStarts.address);
    plan.arguments.set('exchangeOffset', EP_SYNC_BYTES + LAYER_SECTION_BYTES);
    plan.arguments.set('recordWords', recordBytes / 4);
  }
  for (const plan of [prepare, dispatch, combine, barrier]) plan.arguments.set('network', network);
  for (const plan of [prepare, dispatch]) {
    plan.arguments.set('groupRanks', worldSize);
    plan.arguments.set('groupRank', rank);
    plan.arguments.set('ways', waysOf(group));
    plan.arguments.set('experts', numExperts);
    plan.arguments.set('repeatTable', scratch.repeatTable.address);
    plan.arguments.set('tileCounts', scratch.tileCounts.address);
    plan.arguments.set('firstRows', scratch.firstRows.address);
  }
  for (const plan of [dispatch, sumRepeated, combine]) plan.arguments.set('rowBytes', config.rowBytes);
  prepare.arguments.set('maxTokens', config.maxTokensPerRank);
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
  for (const plan of [prepare, dispatch, combine]) plan.arguments.set('capacityRows', capacityRows);
  place.arguments.set('sourceOffset', regions.sourceToken.offset);
  dispatch.arguments.set('rowsOffset', regions.rows.offset);
  combine.arguments.set('rowsOffset', regions.expertRows.offset);
  dispatch.arguments.set('weightsOffset', regions.weights.offset);
  dispatch.arguments.set('firstRowOffset', regions.firstRow.offset);
  dispatch.arguments.set('duplicatesOffset', regions.duplicates.offset);
  dispatch.arguments.set('repeatedOffset', regions.repeated.offset);
  sumRepeated.arguments.set('rows', memory.regionAddress('expertRows'));
}

// What the kernels tell the host of a layer's dispatch: how many rows arrive everywhere, or why none will.

export class CudaLayerPlan extends PlanMemory<keyof typeof layerHostPlan.offset> {
  readonly #config: EPConfig;
  readonly #counted: Int32Array;
  readonly #placed: Int32Array;
  readonly #failed: Int32Array;
  readonly #ranks: readonly number[];

  /** `ranks`: world ranks, for errors. */
  constructor(device: CudaDevice, config: EPConfig, ranks: readonly number[]) {
    super(device, layerHostPlan, config.numExpertsPerRank);
    this.#config = config;
    this.#ranks = ranks;
    this.#counted = this.word('sequence');
    this.#placed = this.word('placeSequence');
    this.#failed = this.word('failedSequence');
  }

  /** True when the counts are those of this dispatch; the kernel stores the sequence number last. */
  isCounted(sequence: number): boolean {
    return Atomics.load(this.#counted, 0) === (sequence | 0);
  }

  /** The same of the kernel that places rows as the caller says. */
  isPlaced(sequence: number): boolean {
    return Atomics.load(this.#placed, 0) === (sequence | 0);
  }

  /** Rows that each rank receives. */
  get recvRows(): number[] {
    return Array.from({ length: this.#config.worldSize }, (_, rank) => this.plan.get('recvRows', rank));
  }

  get perExpert(): number[] {
    return [...this.experts];
  }

  /** Tokens that came once and have several rows here. */
  get repeated(): number {
    return this.plan.get('repeated');
  }

  /** More rows come than the output holds; nothing else is wrong. */
  get mustGrow(): boolean {
    return this.plan.get('status') === epStatus.grow;
  }

  /** Why a dispatch with a bound on its rows failed, as every rank finds it; it is then forgotten. Undefined if none did. */
  takeFailure(): WeftlineError | undefined {
    if (Atomics.load(this.#failed, 0) === 0) return undefined;
    const status = this.plan.get('failedStatus');
    const rank = this.plan.get('failedCulprit');
    const detail = this.plan.get('failedDetail');
    const bound = this.plan.get('failedExtent');
    Atomics.store(this.#failed, 0, 0);
    if (status === epStatus.capacity) return layerCapacityError(this.#ranks[rank]!, { rows: detail, bound });
    if (status === epStatus.badChoice) return this.#badChoice(rank, detail, 'unknown');
    return this.#disagreement(status, this.#ranks[rank]!, detail);
  }

  /** Throws the error that every rank finds alike, if there is one. */
  async throwIfFailed(input: LayerInput): Promise<void> {
    const status = this.plan.get('status');
    if (status === epStatus.good || status === epStatus.grow) return;
    const rank = this.plan.get('culprit');
    const detail = this.plan.get('detail');
    const statuses = Array.from({ length: this.#config.worldSize }, (_, one) => (one === rank ? detail + 1 : 0));
    if (status === epStatus.badPlace) throwIfOutOfBlock(statuses, this.#ranks);
    if (status === epStatus.emptyRow) throwIfRepeated(statuses, this.#ranks);
    if (status === epStatus.badChoice) {
      // The rank that passed the choice says which value it was.
      const value = rank === this.#config.rank ? (await input.topkIdx.toHost())[detail] : undefined;
      throw this.#badChoice(rank, detail, value);
    }
    throw this.#disagreement(status, this.#ranks[rank]!, detail);
  }

  #badChoice(rank: number, cell: number, value: number | bigint | 'unknown' | undefined): WeftlineError {
    const { maxTopk, numExperts: experts } = this.#config;
    const where = choiceAt({ name: 'topkIdx', experts, dropped: experts }, maxTopk, cell);
    return badChoice(where, this.#ranks[rank]!, value);
  }

  #disagreement(status: number, rank: number, word: number): WeftlineError {
    if (status !== epStatus.mismatch) {
      return new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `This rank is in layer dispatch, but rank ${rank} is in another call; all ranks must make the same calls in the same order`,
        { details: { rank } },
      );
    }
    return recordMismatch(layerRecordWords, { rank, first: this.#ranks[0]!, word });
  }
}
