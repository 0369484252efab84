// Windows, links and slots of a sparse all-reduce, on one host or several. Messages lie in memory of the hosts, also those of GPUs.
import { availableParallelism } from 'node:os';
import { agreeOn } from '../../collective/agree.ts';
import type { HostNetwork } from '../../collective/network/host-network.ts';
import { type StepFailure, StepRunner } from '../../collective/steps.ts';
import { type CallWait, Deadline } from '../../core/deadline.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { isCrowded } from '../../transport/host/rank-cores.ts';
import { requireRoom } from '../../windows/room.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { HostsFailure } from '../cpu/call-failure.ts';
import { createMirroredWindow, type MirroredWindow } from '../cpu/mirrored-window.ts';
import { Mirrors } from '../cpu/mirrors.ts';
import { rankParts } from '../cpu/rank-parts.ts';
import { regionsAcrossHosts } from '../cpu/window-regions.ts';
import { AggregatorSlots } from './aggregator-slots.ts';
import type { SparseCall, SparseTraffic } from './sparse-call.ts';
import { BlockCompletions } from './block-completions.ts';
import { CpuBlocks } from './cpu-blocks.ts';
import { CudaBlockWork } from './cuda-block-work.ts';
import { reductionTrees, topLevel } from './reduction-tree.ts';
import { blocksOf, type SlotShape } from './slot-shape.ts';
import { hasBothRoles, isTree, type SparsePlan } from './sparse-options.ts';
import { MAX_ELEMENT_BYTES, type SparseRegions, sparseRegions } from './sparse-regions.ts';
import { AggregatorFailure, nthNet, ServeSteps, WorkerSteps } from './sparse-steps.ts';
import { StagedBlocks } from './staged-blocks.ts';
import type { TensorBlocks } from './tensor-blocks.ts';
import { WindowBoard } from './window-board.ts';
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
  /** Whose memory messages lie in. */
  readonly host: CpuDevice;
  /** Of the tensors; a GPU with what it does for them. */
  readonly work: CudaBlockWork | undefined;
  readonly plan: SparsePlan;
  readonly regions: SparseRegions;
}

export class SparseEngine {
  readonly #window: SymmetricWindow;
  readonly #network: HostNetwork | undefined;
  readonly #board: WindowBoard;
  readonly #failure: StepFailure;
  readonly #runner: StepRunner;
  readonly #worker: WorkerSlots | undefined;
  readonly #tensors: TensorBlocks | undefined;
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
    const opened = await openParts(group, device, plan).catch((error: unknown) => error as Error);
    try {
      const { regions, all, host, work } = await agreeOn(
        group,
        {
          what: WHAT,
          config: { ...shape, fanIn, workers: workers.join(), aggregators: aggregators.join() },
          prepare: () => {
            if (opened instanceof Error) throw opened;
            const own = sparseRegions(shape, { hasBothRoles: hasBothRoles(plan), isTree: isTree(plan) });
            const laidOut = regionsAcrossHosts(own, group.size, hosts);
            const windows = { name: 'windows', bytes: laidOut.bytes, isShared: true };
            requireRoom(WHAT, [windows], { group, device: opened.host });
            return { ...opened, regions: own, all: laidOut };
          },
        },
        wait,
      );
      const of = { group, device: host, what: WHAT, name: 'sparse', regions: all };
      const made = await createMirroredWindow(of, wait);
      return new SparseEngine({ group, host, work, plan, regions, ...made });
    } catch (error) {
      if (!(opened instanceof Error)) await opened.work?.close();
      throw error;
    }
  }

  private constructor({ group, host, work, plan, window, regions, across }: Parts) {
    const { topology, settings, rank: me } = group;
    const { shape, workers, aggregators, fanIn } = plan;
    const hostOf = (rank: number): number => topology.hostOf(rank);
    const trees = reductionTrees({ workers, aggregators, fanIn, hostOf });
    const mirrors =
      across && new Mirrors(across.network, { address: window.address, regions, mirrors: across.mirrors });
    const parts = rankParts(group, window, { regions, mirrors: across?.mirrors ?? 0 });
    const board = new WindowBoard(host, { parts, regions, mirrors, trees });
    this.#window = window;
    this.#network = across?.network;
    this.#board = board;
    this.#workers = workers;
    this.#shape = shape;
    // One more than the aggregators that wait for each other.
    this.#nets = 2 * topLevel(trees) + 1;
    if (workers.includes(me)) {
      const staged = { shape, host, messages: board.memory, maxElementBytes: MAX_ELEMENT_BYTES };
      const blocks = work === undefined ? new CpuBlocks(host, shape) : new StagedBlocks(work, staged);
      this.#tensors = blocks;
      this.#worker = new WorkerSlots(host, { board, blocks, shape, trees, me });
    }
    const failure: StepFailure = across
      ? new HostsFailure({ ...across, group, device: host, window })
      : window.barrier.failure;
    this.#failure = failure;
    if (aggregators.includes(me)) {
      const nameOf = (rank: number): number => group.ranks[rank]!;
      this.#aggregator = new AggregatorSlots(host, { board, shape, trees, me, nameOf });
      this.#failure = new AggregatorFailure(failure, this.#aggregator);
    }
    const outnumber = topology.scaleUpRanks.length > availableParallelism();
    this.#runner = new StepRunner(board.bells, {
      failure: this.#failure,
      network: mirrors,
      timeoutMs: settings.timeoutMs,
      spinUs: settings.collectiveSpinUs,
      polls: work !== undefined,
      isCrowded: outnumber || (across !== undefined && isCrowded(settings)),
    });
  }

  /** Bytes that this rank has put to other hosts so far. */
  get networkBytes(): number {
    return this.#network?.sentBytes ?? 0;
  }

  throwIfUnusable(): void {
    this.#window.barrier.throwIfUnusable();
    const reason = this.#network && this.#failure.reason();
    if (reason !== undefined) throw reason;
  }

  /** Of a worker. `told`: a flag for each part of so many elements, which are whole blocks. */
  async allReduce(call: SparseCall, { signal }: CallWait, told?: ToldParts): Promise<SparseTraffic> {
    const worker = this.#worker!;
    const flag = told && this.#tensors!.flagAt(told.flag);
    const completions = told && new BlockCompletions(flag!, this.#partsOf(call, told));
    const steps = new WorkerSteps({ worker, call, aggregator: this.#aggregator, completions });
    const reserving = worker.reserve(call.count);
    if (reserving !== undefined) await reserving;
    // The aggregator gives up a little sooner, because it knows who is missing.
    await this.#runner.run(steps, { signal, deadline: new Deadline(nthNet(call.timeoutMs, this.#nets)) });
    return worker.traffic;
  }

  #partsOf(
    { count }: SparseCall,
    { elements }: ToldParts,
  ): { readonly blocks: number; readonly blocksPerPart: number } {
    return { blocks: blocksOf(this.#shape, count), blocksPerPart: elements / this.#shape.blockSize };
  }

  /** Of a rank that only aggregates. */
  async serve({ signal }: CallWait): Promise<void> {
    const steps = new ServeSteps(this.#aggregator!, this.#board, this.#workers);
    await this.#runner.run(steps, { signal, deadline: new Deadline(UNBOUNDED_MS) });
  }

  async close(): Promise<void> {
    try {
      if (this.#worker !== undefined) this.#board.leave();
      await this.#network?.close({ untilSourcesLeft: true });
    } finally {
      // What is under way to or from messages ends before their memory goes.
      await this.#tensors?.close();
      this.#window[Symbol.dispose]();
      this.#aggregator?.[Symbol.dispose]();
    }
  }
}

interface Opened {
  readonly host: CpuDevice;
  readonly work: CudaBlockWork | undefined;
}

/** Ranks that only aggregate need nothing of a GPU. */
async function openParts(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  { workers, shape }: SparsePlan,
): Promise<Opened> {
  if (device.kind === 'cpu') return { host: device, work: undefined };
  const host = await CpuDevice.create({ addressSpaceMiB: group.settings.addressSpaceMiB });
  const work = workers.includes(group.rank) ? await CudaBlockWork.create(device, shape) : undefined;
  return { host, work };
}
