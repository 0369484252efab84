// The kernels of an EpLowLatency on a GPU, prepared once: a block for each multiprocessor that a call takes.
import {
  LOW_LATENCY_MAX_BLOCKS,
  LOW_LATENCY_RESULTS,
  LOW_LATENCY_THREADS,
  lowLatencyBlock,
  lowLatencyDecision,
  lowLatencyElastic,
  lowLatencyGroups,
  lowLatencyHostsDone,
  lowLatencyPhases,
  lowLatencyRows,
  lowLatencyTravels,
} from '../../../abi/low-latency.ts';
import { countOverflow } from '../../../core/counts.ts';
import { addSamples } from '../../../core/metric-table.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import type { TrapBox } from '../../../device/cuda/trap-box.ts';
import { TensorSet } from '../../../device/device.ts';
import type { LowLatencyConfig, LowLatencyScope } from '../low-latency-size.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';
import { hostRoutes } from '../../../group/network/host-routes.ts';
import type { RankGroup } from '../../../world/rank-group.ts';

export type LowLatencyLaunches = Awaited<ReturnType<typeof loadLaunches>>;
export type DispatchPlan = LowLatencyLaunches['dispatch']['bf16'];
export type CombinePlan = LowLatencyLaunches['combine'];

/**
 * Multiprocessors that calls leave by default. All blocks of a call must be resident, so a kernel that runs beside it must find
 * room: a call of EpBuffer or of a Communicator has 16 blocks, a kernel of the caller that polls mostly one.
 */
const SPARE_MULTIPROCESSORS = 16;

/** What a thread copies of a row at once, if the row can be divided so. */
const WIDE_BYTES = 16;

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLaunches(device: CudaDevice, config: Required<LowLatencyConfig>, acrossHosts: boolean) {
  const { numSms, elastic, layout, hidden } = config;
  const GROUP = lowLatencyGroups[acrossHosts ? 'hosts' : elastic ? 'elastic' : 'host'];
  const RANK_MAJOR = Number(layout === 'rank-major');
  const values = { GROUP, RANK_MAJOR };
  const TRAVELS = travelsOf(config);
  const fp8Rows = hidden % WIDE_BYTES === 0 ? lowLatencyRows.fp8 : lowLatencyRows.fp8Narrow;
  const [bf16, fp8, { lowLatencyCombine }] = await Promise.all([
    device.loadKernels(kernelFiles.lowLatencyDispatch, { ...values, ROWS: lowLatencyRows.bf16 }),
    device.loadKernels(kernelFiles.lowLatencyDispatch, { ...values, ROWS: fp8Rows }),
    device.loadKernels(kernelFiles.lowLatencyCombine, { GROUP, TRAVELS }),
  ]);
  const forHosts = acrossHosts ? await loadForHosts(device, { RANK_MAJOR, fp8Rows, TRAVELS }) : undefined;
  // Each block counts calls for itself, so all launches have the same ones.
  const { multiprocessors, capability } = device.properties;
  const free = Math.max(multiprocessors - SPARE_MULTIPROCESSORS, Math.ceil(multiprocessors / 2));
  const grid = Math.min(numSms || free, multiprocessors, LOW_LATENCY_MAX_BLOCKS);
  // Being launched takes as long as a flag; the kernels wait for their predecessor themselves.
  const shape = { grid, block: LOW_LATENCY_THREADS, overlapPredecessor: capability.major >= 9 };
  const dispatch = { bf16: bf16.lowLatencyDispatch.plan(shape), fp8: fp8.lowLatencyDispatch.plan(shape) };
  const combine = lowLatencyCombine.plan(shape);
  return {
    /** A launch for each form in which rows are sent. */
    dispatch,
    combine,
    /** What goes before each half of a dispatch across hosts, and between those of a combine, with the same arguments. */
    hosts: forHosts && {
      bf16: {
        send: forHosts.bf16.lowLatencySendHosts.plan(shape, dispatch.bf16),
        forward: forHosts.bf16.lowLatencyForward.plan(shape, dispatch.bf16),
      },
      fp8: {
        send: forHosts.fp8.lowLatencySendHosts.plan(shape, dispatch.fp8),
        forward: forHosts.fp8.lowLatencyForward.plan(shape, dispatch.fp8),
      },
      sums: forHosts.sums.lowLatencyHostSums.plan(shape, combine),
    },
    /** A block of the same kernel that waits until memory may be written. */
    awaitBuffer: lowLatencyCombine.plan({ grid: 1, block: 32 }),
  };
}

async function loadForHosts(
  device: CudaDevice,
  { RANK_MAJOR, fp8Rows, TRAVELS }: { readonly RANK_MAJOR: number; readonly fp8Rows: number; readonly TRAVELS: number },
) {
  const [bf16, fp8, sums] = await Promise.all([
    device.loadKernels(kernelFiles.lowLatencyForward, { RANK_MAJOR, ROWS: lowLatencyRows.bf16 }),
    device.loadKernels(kernelFiles.lowLatencyForward, { RANK_MAJOR, ROWS: fp8Rows }),
    device.loadKernels(kernelFiles.lowLatencyHostSums, { TRAVELS }),
  ]);
  return { bf16, fp8, sums };
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
  /** Address of each rank's window; 0 for those that kernels find by themselves. */
  readonly windows: readonly number[];
  readonly traps: TrapBox;
  readonly tables: Pick<CudaLowLatencyTables, 'blocks' | 'decisions' | 'droppedRows' | 'elastic' | 'hostsDone'>;
  /** EpNetwork; 0 for ranks of one host. */
  readonly network: number;
  /** Where the kernels of an elastic object find who takes part. */
  readonly board?: { readonly address: number; readonly stride: number; readonly table: number };
}

/** Addresses and counts that stay the same for all calls. */
export function bindLaunches(
  { dispatch, combine, awaitBuffer }: LowLatencyLaunches,
  { config, group, size }: LowLatencyScope,
  { windows, traps, tables, network, board }: BoundMemory,
): void {
  const dispatches = [dispatch.bf16, dispatch.fp8];
  const { scaleUpRanks, scaleUpIndex } = group.topology;
  const here = scaleUpRanks.reduce((bits, rank) => (bits | (1 << rank)) >>> 0, 0);
  for (const plan of [...dispatches, combine, awaitBuffer]) {
    const set = plan.arguments;
    for (const [index, address] of windows.entries()) set.set('peers', address, index);
    set.set('blocks', tables.blocks.address);
    set.set('trap', traps.address);
    set.set('ranks', group.size);
    set.set('rank', group.rank);
    set.set('network', network);
    set.set('hostsDone', tables.hostsDone.address);
    // Kernels of elastic ranks find them by themselves.
    set.set('active', here);
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
  combine.arguments.set('column', scaleUpIndex);
  awaitBuffer.arguments.set('phases', lowLatencyPhases.buffer);
}

// The tables that low-latency kernels work with on a GPU besides the window, all allocated before the ranks agree.

// How many rows a low-latency object on a GPU was offered beyond the capacity of its experts, for metrics: its kernels count them.

class DroppedRows implements Disposable {
  readonly #memory: HostMemory;
  readonly #policy: 'drop' | 'fail';
  readonly #forget: () => void;

  constructor(device: CudaDevice, policy: 'drop' | 'fail') {
    this.#memory = device.allocateHost(8);
    this.#policy = policy;
    this.#forget = addSamples(() => {
      const value = this.rows;
      return value === 0 ? [] : [{ name: 'weftline_ep_overflow_total', labels: [policy], value }];
    });
  }

  /** Address for the kernels. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  get rows(): number {
    return this.#memory.disposed ? 0 : Number(new BigUint64Array(this.#memory.buffer, 0, 1)[0]);
  }

  /** What was counted stays so. */
  [Symbol.dispose](): void {
    if (this.#memory.disposed) return;
    this.#forget();
    countOverflow(this.#policy, this.rows);
    this.#memory[Symbol.dispose]();
  }
}

export type CudaLowLatencyTables = ReturnType<typeof makeCudaTables>;
export type CudaResultTables = CudaLowLatencyTables['results'][number];

/** Halves of a call: sending and receiving. */
const HALVES = 2;

/** Fails with WL_MEMORY. */
export function makeCudaTables(device: CudaDevice, config: Required<LowLatencyConfig>, group: RankGroup) {
  const { size: ranks, topology } = group;
  const { ways, served } = hostRoutes(topology.hosts, group.rank);
  const { maxTokensPerRank: most, maxTopk: k, numExperts, layout, combineTravels, maxTokensPerExpert } = config;
  const isExpertMajor = layout === 'expert-major';
  const isByChoice = isExpertMajor && combineTravels === 'choices';
  const experts = isExpertMajor ? numExperts / ranks : 0;
  const arriving = isExpertMajor && !isByChoice ? ranks * most * k : 0;
  const elasticRanks = config.elastic ? ranks : 0;
  const elasticTokens = config.elastic ? most : 0;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    /** LowLatencyBlock for each block. */
    blocks: tensors.empty('u8', [LOW_LATENCY_MAX_BLOCKS, lowLatencyBlock.size]),
    /** LowLatencyDecision for each half of a call, and LowLatencyElastic; empty where ranks are fixed. */
    decisions: tensors.empty('u8', [config.elastic ? HALVES : 0, lowLatencyDecision.size]),
    elastic: tensors.empty('u8', [config.elastic ? lowLatencyElastic.size : 0]),
    /** LowLatencyHostsDone. */
    hostsDone: tensors.empty('u8', [lowLatencyHostsDone.size]),
    /** What each of the two results that are alive at once needs besides its rows; see LowLatencyDispatchArguments. */
    results: Array.from({ length: LOW_LATENCY_RESULTS }, () => ({
      sentRows: tensors.empty('i32', [most, ranks]),
      /** Empty unless all choices travel. */
      sentPlaces: tensors.empty('i32', [isByChoice ? most : 0, k, 2]),
      /** For each way to another host, and for each source there that this rank serves. */
      sentWays: tensors.empty('i32', [most, ways.length]),
      servedRows: tensors.empty('i32', [served.length, most, topology.scaleUpRanks.length]),
      servedCounts: tensors.empty('i32', [served.length]),
      arrived: tensors.empty('i32', [ranks]),
      counts: tensors.empty('i32', [experts]),
      dropped: tensors.empty('i32', [experts]),
      ranges: tensors.empty('i32', [experts, ranks, 2]),
      sources: tensors.empty('i32', [experts, maxTokensPerExpert]),
      /** [ranks, M, K], as the weights; empty unless this rank adds up. */
      rowOf: tensors.empty('i32', [arriving]),
      rowWeights: tensors.empty('f32', [arriving]),
      /** The ranks of an elastic object whose rows are in the dispatch or the combine, and its choices. */
      received: tensors.empty('i32', [elasticRanks]),
      added: tensors.empty('i32', [elasticRanks]),
      keptChoices: tensors.empty('i32', [elasticTokens, k]),
      droppedChoices: tensors.empty('i32', [elasticTokens]),
    })),
  }));
  try {
    const droppedRows = new DroppedRows(device, config.overflow);
    const dispose = (): void => {
      droppedRows[Symbol.dispose]();
      set[Symbol.dispose]();
    };
    return { ...made, droppedRows, [Symbol.dispose]: dispose };
  } catch (error) {
    set[Symbol.dispose]();
    throw error;
  }
}
