// Collectives of CUDA ranks of several hosts: the steps of CPU ranks, of which a GPU does what moves or adds up bytes. Ranks
// of a host read each other's slots in GPU memory; what goes to other hosts is copied to the window of CPU ranks on the way.
import { COLLECTIVE_MAX_RANKS_ACROSS_HOSTS, type runArguments } from '../../abi/collectives.ts';
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import type { CallWait } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import { PinnedRange } from '../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { DeviceEvent } from '../../device/device.ts';
import { agreeOn } from '../../group/agree.ts';
import { CudaCallOrder } from '../../group/cuda-calls.ts';
import type { OverlapOptions } from '../../group/overlap.ts';
import { CudaWindow } from '../../windows/cuda-window.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { AlgorithmTable } from '../algorithm-table.ts';
import type { CollectiveCall, CollectiveEngine, PairMessage, ReducedDType, Route } from '../collective-call.ts';
import type { CheckedCommunicatorOptions } from '../communicator-options.ts';
import { CpuCollectives } from '../cpu/cpu-collectives.ts';
import type { DataPlaces, Mover } from '../cpu/movements.ts';
import {
  collectiveRegions,
  createMirroredWindow,
  type MirroredWindow,
  rankParts,
  regionsAcrossHosts,
} from '../cpu/window-regions.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

/** What an engine is made of, and owns. */
export interface HostsCollectivesParts {
  readonly device: CudaDevice;
  /** Carries out the steps. Owns the mover, and the window of the host. */
  readonly steps: CpuCollectives;
  readonly mover: StreamMover;
  readonly order: CudaCallOrder;
  /** Slots and channels between ranks of this host. */
  readonly slots: CudaWindow;
}

export class HostsCollectives implements CollectiveEngine {
  readonly ordersCalls = true;
  lastEvent: DeviceEvent | undefined;
  readonly #parts: HostsCollectivesParts;

  constructor(parts: HostsCollectivesParts) {
    this.#parts = parts;
  }

  get routes(): readonly Route[] {
    return this.#parts.steps.routes;
  }

  throwIfUnusable(): void {
    if (this.#parts.device.context.disposed)
      throw new WeftlineError('WL_CLOSED', 'The device of this object was closed');
    this.#parts.steps.throwIfUnusable();
  }

  run(call: CollectiveCall, options: CallWait & OverlapOptions): Promise<void> | undefined {
    return this.#inOrder(options, () => this.#parts.steps.run(call, options));
  }

  exchange(messages: readonly PairMessage[], options: CallWait & OverlapOptions): Promise<void> | undefined {
    return this.#inOrder(options, () => this.#parts.steps.exchange(messages, options));
  }

  /** Slots lie in memory that is mapped already. */
  register(): Promise<void> {
    return Promise.resolve();
  }

  async close(): Promise<void> {
    const { steps, order, slots } = this.#parts;
    // What still runs uses the windows of this rank and of others.
    await order.drained();
    try {
      await steps.close();
    } finally {
      order[Symbol.dispose]();
      slots[Symbol.dispose]();
    }
  }

  /** What follows on the device's stream comes after the call's last work there, whatever became of it. */
  #inOrder(options: OverlapOptions, begin: () => Promise<void> | undefined): Promise<void> | undefined {
    const { device, mover, order } = this.#parts;
    device.context.refuseCapture('a call of a Communicator of several hosts, whose steps the host makes,');
    mover.stream = order.begin(options);
    const leave = device.context.beginHostCall('a call of a Communicator of several hosts');
    const end = (): void => {
      leave();
      this.lastEvent = order.end(options);
    };
    let rest: Promise<void> | undefined;
    try {
      rest = begin();
    } catch (error) {
      end();
      throw error;
    }
    if (rest !== undefined) return rest.finally(end);
    end();
    return undefined;
  }
}

// Makes the engine of a Communicator on GPUs of several hosts: the ranks agree, compile, then make windows and links together.

const MIB = 1 << 20;
/** Bytes of a rank's messages to all others: enough that a piece is worth the host's work for it; and of all ranks together. */
const CHANNEL_BYTES = 16 * MIB;
const CHANNELS_OF_ALL = 256 * MIB;
const MAX_CHANNEL_SLOT = MIB;
/** Memory beside the windows: the kernels' own data, and a step in which memory grows. */
const SPARE_MIB = 80;

/** Collective; fails alike on all ranks. */
export async function createHostsCollectives(
  group: RankGroup,
  device: CudaDevice,
  { pieceBytes, numSms, table, ...wait }: CallWait & CheckedCommunicatorOptions & { readonly table: AlgorithmTable },
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const { topology } = group;
  const { hosts, scaleUpRanks } = topology;
  const channels = { bytes: Math.min(CHANNEL_BYTES, CHANNELS_OF_ALL / group.size), mostOfSlot: MAX_CHANNEL_SLOT };
  const regions = collectiveRegions(group.size, pieceBytes, channels);
  const all = regionsAcrossHosts(regions, group.size, hosts);
  const config = { pieceBytes, numSms, algorithms: JSON.stringify(table), device: device.kind };
  await agreeOn(group, { what, config, prepare: () => requireRanks(group) }, wait);
  const mappedMiB = Math.ceil(windowFootprint(all.bytes, scaleUpRanks.length) / MIB);
  // What may fail or take long on one rank alone comes before the ranks meet again.
  const made = await prepareHere(device, Math.min(mappedMiB + SPARE_MIB, 4096)).catch(
    (error: unknown) => error as Error,
  );
  const prepare = (): PreparedHere => {
    if (made instanceof Error) throw made;
    checkMemoryBudget(what, [{ name: 'windows', bytes: all.bytes, isShared: true }], { group, device: made.host });
    return made;
  };
  const { host, plans } = await agreeOn(group, { what: `${what} kernels`, config: {}, prepare }, wait);
  const owned: { mirrored?: MirroredWindow; slots?: CudaWindow; memory?: PinnedRange } = {};
  try {
    const of = { group, device: host, what, name: 'collectives', regions: all };
    const mirrored = (owned.mirrored = await createMirroredWindow(of, wait));
    const slots = (owned.slots = await CudaWindow.create({ ...wait, group, device, name: what, bytes: regions.bytes }));
    const { storage } = mirrored.window;
    const pin = (): void => {
      owned.memory = new PinnedRange(device.context, host.hostView('u8', storage.address, storage.bytes));
    };
    const { failure } = await shareOutcome(group, { name: `${what}/pin`, facts: {}, work: pin }, wait);
    if (failure !== undefined) throw failure;
    const memory = owned.memory!;
    const mover = new StreamMover(device, { plans, numSms, memory });
    const parts = rankParts(group, mirrored.window, { regions, mirrors: mirrored.across!.mirrors });
    const mapped = (address: number): number => memory.deviceAddress + address - storage.address;
    const addresses = parts.addresses.map((address, rank) =>
      topology.hostOf(rank) === topology.hostIndex ? slots.addresses[topology.scaleUpIndexOf(rank)]! : mapped(address),
    );
    const places: DataPlaces = { areShared: false, addresses, outgoing: mapped(mirrored.window.address) };
    const steps = new CpuCollectives({
      group,
      device: host,
      regions,
      table,
      ...mirrored,
      elsewhere: { mover, places },
      // What other ranks of the host hold lies in memory of GPUs.
      memory: undefined,
      directBytes: 0,
    });
    return new HostsCollectives({ device, steps, mover, order: new CudaCallOrder(device), slots });
  } catch (error) {
    await owned.mirrored?.across?.network.close();
    for (const part of [owned.memory, owned.slots, owned.mirrored?.window]) part?.[Symbol.dispose]();
    throw error;
  }
}

interface PreparedHere {
  readonly host: CpuDevice;
  readonly plans: RunPlans;
}

async function prepareHere(device: CudaDevice, addressSpaceMiB: number): Promise<PreparedHere> {
  return { host: await CpuDevice.create({ addressSpaceMiB }), plans: await loadRunPlans(device) };
}

function requireRanks({ size, topology }: RankGroup): void {
  if (size <= COLLECTIVE_MAX_RANKS_ACROSS_HOSTS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `A Communicator on GPUs of several hosts has at most ${COLLECTIVE_MAX_RANKS_ACROSS_HOSTS} ranks, got ${size}: use a CpuDevice, or smaller groups (world.split)`,
    { details: { ranks: size, hosts: topology.hosts.length } },
  );
}

// Moves and adds up the bytes of calls on a stream of a GPU: copies by its copy engines, reductions by a kernel.

type RunPlan = LaunchPlan<keyof typeof runArguments.offset>;

/** Plans by dtype. */
type RunPlans = Readonly<Record<ReducedDType, RunPlan>>;

const THREADS = 512;
/** What one block adds up before others share the work. */
const BLOCK_BYTES = 8192;

/** Compiles. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
async function loadRunPlans(device: CudaDevice): Promise<RunPlans> {
  const plan = async (FORMAT: number): Promise<RunPlan> => {
    const { collectiveRuns } = await device.loadKernels(kernelFiles.collectiveRun, { FORMAT });
    return collectiveRuns.plan({ grid: 1, block: THREADS });
  };
  const { bf16, f32, i32 } = reductionFormats;
  const plans = await Promise.all([plan(bf16), plan(f32), plan(i32)]);
  return { bf16: plans[0], f32: plans[1], i32: plans[2] };
}

interface StreamMoverParts {
  readonly plans: RunPlans;
  /** Multiprocessors that a reduction may use. */
  readonly numSms: number;
  /** Memory of the host, from which and to which it moves bytes; owned by the mover. */
  readonly memory: PinnedRange;
}

export class StreamMover implements Mover {
  readonly isImmediate = false;
  readonly sources: number[] = [];
  /** The stream of the present call. */
  stream: CudaStream;
  readonly #device: CudaDevice;
  readonly #plans: RunPlans;
  readonly #numSms: number;
  readonly #memory: PinnedRange;
  readonly #end: CudaEvent;

  constructor(device: CudaDevice, { plans, numSms, memory }: StreamMoverParts) {
    this.stream = device.stream;
    this.#device = device;
    this.#plans = plans;
    this.#numSms = numSms;
    this.#memory = memory;
    this.#end = device.createEvent();
  }

  copy(to: number, from: number, bytes: number): void {
    if (bytes > 0) this.#device.copyAsync(to, from, bytes, this.stream);
  }

  reduce({ dtype, reduction }: CollectiveCall, count: number, out: number, bytes: number): void {
    if (bytes === 0) return;
    const plan = this.#plans[dtype as ReducedDType];
    const set = plan.arguments;
    for (let place = 0; place < count; place++) set.set('sources', this.sources[place]!, place);
    set.set('target', out);
    set.set('bytes', bytes);
    set.set('count', count);
    set.set('reduction', reductions[reduction]);
    plan.setGrid(Math.max(1, Math.min(this.#numSms, Math.ceil(bytes / BLOCK_BYTES))));
    plan.launch(this.stream);
  }

  mark(): void {
    this.#end.record(this.stream);
  }

  isSettled(): boolean {
    return this.#end.isDone();
  }

  [Symbol.dispose](): void {
    this.#end[Symbol.dispose]();
    this.#memory[Symbol.dispose]();
  }
}
