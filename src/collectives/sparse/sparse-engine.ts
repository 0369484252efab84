// Windows, links and slots of a sparse all-reduce, on one host or several. Messages lie in memory of the hosts, also those of GPUs.
import { COLLECTIVE_MAX_RANKS } from '../../abi/collectives.ts';
import { type CallWait, Deadline, remaining, secondNet } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { agreeOn } from '../../group/agree.ts';
import type { StepFailure, StepRunner, Steps } from '../../group/steps.ts';
import type { Missing } from '../../windows/abort-record.ts';
import { CudaWindow } from '../../windows/cuda-window.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { StepGround } from '../cpu/step-ground.ts';
import { createMirroredWindow, type MirroredWindow, regionsAcrossHosts } from '../cpu/window-regions.ts';
import { AggregatorSlots } from './aggregator-slots.ts';
import { BlockCompletions, type BlockReducer } from './block-reducer.ts';
import { CpuBlocks } from './cpu-blocks.ts';
import {
  CudaBlockWork,
  CudaDirectWork,
  type DirectKernels,
  directWindowBytes,
  loadDirectKernels,
} from './cuda-work.ts';
import { DirectBoard, DirectReducer } from './direct-reducer.ts';
import { reductionTrees, topLevel } from './reduction-tree.ts';
import { blocksOf, type SlotShape } from './slot-shape.ts';
import type { SparseCall, SparseTraffic } from './sparse-call.ts';
import { hasBothRoles, isTree, type SparsePlan } from './sparse-options.ts';
import { StagedBlocks } from './staged-blocks.ts';
import { MAX_ELEMENT_BYTES, type SparseRegions, sparseRegions, WindowBoard } from './window-board.ts';
import { WorkerSlots } from './worker-slots.ts';

const WHAT = 'SparseAllReduce';
/** An aggregator serves for as long as the job takes: the longest time that there is. */
const UNBOUNDED_MS = 2 ** 31 - 1;

/** How a call tells which parts of its output are done. */
export interface ToldParts {
  /** Address of an i32 on the device of the tensors. */
  readonly flag: number;
  readonly elements: number;
}

interface Parts extends MirroredWindow {
  readonly group: RankGroup;
  /** The device whose memory messages lie in. */
  readonly host: CpuDevice;
  /** The device of the tensors; a GPU with what it does for them. */
  readonly work: CudaBlockWork | undefined;
  /** The work of GPUs that reach each other, where every rank adds up. */
  readonly direct: CudaDirectWork | undefined;
  readonly plan: SparsePlan;
  readonly regions: SparseRegions;
}

export class SparseEngine {
  readonly #ground: StepGround;
  readonly #board: WindowBoard;
  readonly #runner: StepRunner;
  readonly #reducer: BlockReducer | undefined;
  readonly #serving: WorkerParts['serving'];
  readonly #aggregator: AggregatorSlots | undefined;
  readonly #workers: readonly number[];
  readonly #shape: SlotShape;
  /** How many ranks give up before a worker does. */
  readonly #nets: number;

  /** Collective; fails alike on all ranks. */
  static async create(
    group: RankGroup,
    device: CpuDevice | CudaDevice,
    plan: SparsePlan,
    wait: CallWait,
  ): Promise<SparseEngine> {
    const { hosts } = group.topology;
    const { shape, fanIn, workers, aggregators } = plan;
    // Both may fail on one rank alone, which the others hear of when they agree.
    const kinds = await group.allGather('sparse/devices', device.kind, remaining(wait));
    const isDirect = kinds.every((kind) => kind === 'cuda') && canBeDirect(group, plan);
    const opened = await openParts(group, device, plan, isDirect).catch((error: unknown) => error as Error);
    const owned: { close(): Promise<void> | void }[] = [];
    if (!(opened instanceof Error) && opened.work !== undefined) owned.push(opened.work);
    try {
      const { regions, all, host, work, kernels } = await agreeOn(
        group,
        {
          what: WHAT,
          config: { ...shape, fanIn, workers: workers.join(), aggregators: aggregators.join() },
          prepare: () => {
            if (opened instanceof Error) throw opened;
            const own = sparseRegions(shape, { hasBothRoles: hasBothRoles(plan), isTree: isTree(plan) });
            const laidOut = regionsAcrossHosts(own, group.size, hosts);
            const windows = { name: 'windows', bytes: laidOut.bytes, isShared: true };
            checkMemoryBudget(WHAT, [windows], { group, device: opened.host });
            return { ...opened, regions: own, all: laidOut };
          },
        },
        wait,
      );
      const direct =
        kernels && (await openDirect(group, device as CudaDevice, { kernels, blockSize: shape.blockSize, wait }));
      if (direct !== undefined) {
        await work?.close();
        owned.splice(0, owned.length, direct);
      }
      const of = { group, device: host, what: WHAT, name: 'sparse', regions: all };
      const made = await createMirroredWindow(of, wait);
      // ORDER: peers write into the window until their way to it is closed.
      owned.push({ close: () => made.across?.network.close() }, { close: () => made.window[Symbol.dispose]() });
      return new SparseEngine({ group, host, work, direct, plan, regions, ...made });
    } catch (error) {
      for (const one of owned) await one.close();
      throw error;
    }
  }

  private constructor({ group, host, work, direct, plan, window, regions, across }: Parts) {
    const { topology, rank: me } = group;
    const { shape, workers, aggregators, fanIn } = plan;
    const hostOf = (rank: number): number => topology.hostOf(rank);
    const trees = reductionTrees({ workers, aggregators, fanIn, hostOf });
    const ground = new StepGround(group, host, { window, across, regions });
    const { parts, mirrors } = ground;
    const board = new WindowBoard(host, { parts, regions, mirrors, trees });
    this.#ground = ground;
    this.#board = board;
    this.#workers = workers;
    this.#shape = shape;
    const nameOf = (rank: number): number => group.ranks[rank]!;
    let { failure } = ground;
    if (direct === undefined) {
      // One more than the aggregators that wait for each other.
      this.#nets = 2 * topLevel(trees) + 1;
      let worker: WorkerSlots | undefined;
      if (workers.includes(me)) {
        const staged = { shape, host, messages: board.memory, maxElementBytes: MAX_ELEMENT_BYTES };
        const blocks = work === undefined ? new CpuBlocks(host, shape) : new StagedBlocks(work, staged);
        worker = new WorkerSlots(host, { board, blocks, shape, trees, me });
      }
      this.#reducer = worker;
      if (aggregators.includes(me)) {
        const aggregator = new AggregatorSlots(host, { board, shape, trees, me, nameOf });
        this.#aggregator = aggregator;
        failure = new AggregatorFailure(failure, aggregator);
        this.#serving = worker && { worker, aggregator };
      }
    } else {
      this.#nets = 0;
      const told = new DirectBoard(board.words, board.boards, { me, bells: board.bells });
      this.#reducer = new DirectReducer({
        board: told,
        work: direct,
        shape,
        nameOf,
        throwIfUnusable: () => ground.throwIfUnusable(),
      });
    }
    this.#runner = ground.runner(board.bells, { failure, polls: work !== undefined || direct !== undefined });
  }

  /** Bytes that this rank has put to other hosts so far. */
  get networkBytes(): number {
    return this.#ground.network?.sentBytes ?? 0;
  }

  throwIfUnusable(): void {
    this.#ground.throwIfUnusable();
  }

  /** A worker's call. `told`: a flag for each part of so many elements, which are whole blocks. */
  async allReduce(call: SparseCall, { signal }: CallWait, told?: ToldParts): Promise<SparseTraffic> {
    const reducer = this.#reducer!;
    const flag = told && reducer.flagAt(told.flag);
    const { blockSize } = this.#shape;
    const blocks = blocksOf(this.#shape, call.count);
    const completions = told && new BlockCompletions(flag!, { blocks, blocksPerPart: told.elements / blockSize });
    const steps = new WorkerSteps({ reducer, call, serving: this.#serving, completions });
    const reserving = reducer.reserve(call.count);
    if (reserving !== undefined) await reserving;
    // The aggregator gives up a little sooner, because it knows who is missing.
    await this.#runner.run(steps, { signal, deadline: new Deadline(nthNet(call.timeoutMs, this.#nets)) });
    return reducer.traffic;
  }

  /** Serves on a rank that only aggregates. */
  async serve({ signal }: CallWait): Promise<void> {
    const steps = new ServeSteps(this.#aggregator!, this.#board, this.#workers);
    await this.#runner.run(steps, { signal, deadline: new Deadline(UNBOUNDED_MS) });
  }

  async close(): Promise<void> {
    try {
      if (this.#reducer !== undefined) this.#board.leave();
      await this.#ground.network?.close({ untilSourcesLeft: true });
    } finally {
      try {
        // What is under way to or from messages ends before their memory goes.
        await this.#reducer?.close();
      } finally {
        this.#ground.window[Symbol.dispose]();
        this.#aggregator?.[Symbol.dispose]();
      }
    }
  }
}

interface Opened {
  readonly host: CpuDevice;
  readonly work: CudaBlockWork | undefined;
  readonly kernels: DirectKernels | undefined;
}

/** Ranks that only aggregate need nothing of a GPU. */
async function openParts(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  { workers, shape }: SparsePlan,
  isDirect: boolean,
): Promise<Opened> {
  const none = { work: undefined, kernels: undefined };
  if (device.kind === 'cpu') return { ...none, host: device };
  const host = await CpuDevice.create({ addressSpaceMiB: group.settings.addressSpaceMiB });
  const kernels = isDirect ? await loadDirectKernels(device) : undefined;
  const work = workers.includes(group.rank) ? await CudaBlockWork.create(device, shape) : undefined;
  return { host, work, kernels };
}

/** The blocks need not go anywhere else where every rank adds up what all have. */
function canBeDirect({ size, topology }: RankGroup, plan: SparsePlan): boolean {
  const { workers, aggregators } = plan;
  if (topology.hosts.length > 1 || size > COLLECTIVE_MAX_RANKS || isTree(plan)) return false;
  return workers.length === size && aggregators.length === size;
}

/** Collective. undefined on all ranks where a GPU does not reach the others. */
async function openDirect(
  group: RankGroup,
  device: CudaDevice,
  {
    kernels,
    blockSize,
    wait,
  }: { readonly kernels: DirectKernels; readonly blockSize: number; readonly wait: CallWait },
): Promise<CudaDirectWork | undefined> {
  try {
    const bytes = directWindowBytes(blockSize);
    const window = await CudaWindow.create({ ...wait, group, device, name: 'sparse', bytes });
    try {
      return new CudaDirectWork(device, kernels, window, blockSize);
    } catch (error) {
      window[Symbol.dispose]();
      throw error;
    }
  } catch (error) {
    if (error instanceof WeftlineError && error.code === 'WL_CUDA') return undefined;
    throw error;
  }
}

// What a rank does in a sparse all-reduce, as a worker, an aggregator or both; why it gives up when workers do not come.

interface WorkerParts {
  readonly reducer: BlockReducer;
  readonly call: SparseCall;
  /** Both sides of a worker that aggregates as well. */
  readonly serving: { readonly worker: WorkerSlots; readonly aggregator: AggregatorSlots } | undefined;
  /** Completions of a call that tells how far it is. */
  readonly completions: BlockCompletions | undefined;
}

/** A worker's call; a worker that aggregates as well serves the others meanwhile. */
class WorkerSteps implements Steps {
  readonly name: string = 'sparse allReduce';
  readonly #reducer: BlockReducer;
  readonly #serving: WorkerParts['serving'];
  readonly #completions: BlockCompletions | undefined;
  /** The call that has not begun yet. */
  #call: SparseCall | undefined;

  constructor({ reducer, call, serving, completions }: WorkerParts) {
    this.#reducer = reducer;
    this.#call = call;
    this.#serving = serving;
    this.#completions = completions;
  }

  get progress(): number {
    return this.#reducer.progress + (this.#serving?.aggregator.progress ?? 0);
  }

  advance(): boolean {
    const call = this.#call;
    this.#call = undefined;
    if (call !== undefined) this.#reducer.begin(call);
    this.#serving?.aggregator.advance();
    const isOver = this.#reducer.advance();
    const isTold = this.#completions?.processCompletions(this.#reducer.finalBlocks) ?? true;
    return isOver && isTold && this.#hasServed();
  }

  missing(): readonly number[] {
    const late = this.#serving?.aggregator.missing() ?? [];
    return late.length > 0 ? late : this.#reducer.awaited();
  }

  /** Others may still wait for what this rank hands down to them of this call. What they send of the next one can wait. */
  #hasServed(): boolean {
    if (this.#serving === undefined) return true;
    const { aggregator, worker } = this.#serving;
    for (let slot = 0; slot < aggregator.slots; slot++) {
      const handedDown = aggregator.numberOf(slot);
      if (handedDown !== undefined && ((handedDown - worker.numberOf(slot)) | 0) < 0) return false;
    }
    return true;
  }
}

/** Sums for the workers until all of them have left. */
class ServeSteps implements Steps {
  readonly name: string = 'sparse allReduce, as an aggregator';
  readonly #aggregator: AggregatorSlots;
  readonly #board: WindowBoard;
  readonly #workers: readonly number[];

  constructor(aggregator: AggregatorSlots, board: WindowBoard, workers: readonly number[]) {
    this.#aggregator = aggregator;
    this.#board = board;
    this.#workers = workers;
  }

  get progress(): number {
    return this.#aggregator.progress;
  }

  advance(): boolean {
    this.#aggregator.advance();
    return this.#aggregator.isIdle && this.#workers.every((worker) => this.#board.hasLeft(worker));
  }

  /** While no call is under way, those who may still begin one. */
  missing(): readonly number[] {
    if (!this.#aggregator.isIdle) return this.#aggregator.missing();
    return this.#workers.filter((worker) => !this.#board.hasLeft(worker));
  }
}

/** When to give up on those who give up by themselves, where so many ranks on the way to the culprit do so one after another. */
function nthNet(timeoutMs: number, nets: number): number {
  let later = timeoutMs;
  for (let net = 0; net < nets; net++) later = secondNet(later);
  return later;
}

/**
 * Adds that a worker who keeps the others waiting is named by its aggregator, who alone knows which one it is: it gives up
 * when nobody has sent it anything for as long as the workers wait; those who wait for the aggregator do so later.
 */
class AggregatorFailure implements StepFailure {
  readonly timeout: StepFailure['timeout'];
  readonly raise: StepFailure['raise'];
  readonly reason: StepFailure['reason'];
  readonly rankOf: StepFailure['rankOf'];
  readonly #failure: StepFailure;
  readonly #aggregator: AggregatorSlots;
  #progress = -1;
  #since = 0;

  constructor(failure: StepFailure, aggregator: AggregatorSlots) {
    this.#failure = failure;
    this.#aggregator = aggregator;
    this.timeout = (...parts) => failure.timeout(...parts);
    this.raise = (error) => failure.raise(error);
    this.reason = () => failure.reason();
    this.rankOf = (rank) => failure.rankOf(rank);
  }

  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    return this.#failure.reasonToGiveUp(missing, signal) ?? this.#stalled();
  }

  #stalled(): WeftlineError | undefined {
    const aggregator = this.#aggregator;
    const now = performance.now();
    if (aggregator.isIdle || aggregator.progress !== this.#progress) {
      this.#progress = aggregator.progress;
      this.#since = now;
      return undefined;
    }
    const stalled = aggregator.stalled();
    if (stalled === undefined) return undefined;
    const { ranks, nets } = stalled;
    const patience = nthNet(aggregator.timeoutMs, nets);
    if (now - this.#since < patience) return undefined;
    const hint = 'the aggregator and other workers wait for it in a sparse allReduce; it lives, and may still compute';
    return this.#failure.timeout(() => ranks, patience, hint);
  }
}
