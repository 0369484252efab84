// Measures collectives of CUDA ranks, each call in turn with the same of NCCL, by events on the device's stream.
import { Communicator, type CommunicatorOptions } from '../../../collectives/index.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { World } from '../../../world/index.ts';
import { loadAverage } from '../machine.ts';
import { samplePlacement } from '../machine.ts';
import { BenchedCall, makeBenchMemory } from './benched-call.ts';
import { type Entry, newMeasured, reportOf } from './collectives-bench.ts';
import type { CollectivesBenchReport } from './collectives-results.ts';
import { type CollectivesWorkload, countOf, cudaIterationsOf, sizePlans } from './collectives-workload.ts';
import { NcclLoop } from './nccl-loop.ts';

/** Results of larger calls are not compared: bringing them to the host takes longer than all calls. */
const MAX_COMPARED = 32 << 20;
/** Calls of each kind and side until V8 has compiled what the loops run, of the first size if it is at most so large. */
const WARMUP_CALLS = 2000;
/** The same across hosts, where a call takes much longer. */
const WARMUP_CALLS_ACROSS_HOSTS = 50;
const MAX_WARMED = 1 << 20;

export interface CudaCollectivesBenchOptions {
  readonly workload: CollectivesWorkload;
  readonly compare: 'nccl' | undefined;
  readonly registers: boolean;
  readonly communicator: Pick<CommunicatorOptions, 'numSms' | 'directBytes' | 'pieceBytes' | 'copyEngines'>;
  /** Said by rank 0. */
  readonly tell: (text: string) => void;
  readonly progress?: (done: number, total: number) => void;
}

/** Collective; rank 0 gets the report. */
export async function runCudaCollectivesBench(
  world: World,
  device: CudaDevice,
  { workload, compare, registers, communicator: options, tell, progress }: CudaCollectivesBenchOptions,
): Promise<CollectivesBenchReport | undefined> {
  const before = { load: loadAverage(), placement: world.rank === 0 ? await samplePlacement() : undefined };
  await using communicator = await Communicator.create(world, device, options);
  using peer = compare === undefined ? undefined : await NcclLoop.create(world, device);
  const isFirst = world.rank === 0;
  if (compare !== undefined && peer === undefined && isFirst) tell('no NCCL was found: nothing to compare with');
  const memory = makeBenchMemory(device, workload);
  if (registers) for (const tensor of [memory.first, memory.second]) await communicator.register(tensor);
  const entries = entriesOf(workload);
  const timer = new StreamTimer(device, communicator);
  const warmed: Warmed = { communicator, peer, workload, memory };
  for (const kind of workload.kinds) await warm(kind, entries.find((entry) => entry.kind === kind)?.plan.bytes, warmed);
  for (let round = 0; round < workload.rounds; round++) {
    for (const [index, entry] of entries.entries()) {
      await measureEntry(entry, { ...warmed, timer, isFirst: round === 0 });
      progress?.(round * entries.length + index + 1, workload.rounds * entries.length);
    }
  }
  await takeSlowest(world, entries);
  if (!isFirst) return undefined;
  return reportOf({ workload, entries, peer: peer?.version, before, ranksOn: ranksOn(device, registers, options) });
}

function ranksOn(
  device: CudaDevice,
  registers: boolean,
  { numSms = 16, copyEngines = false }: CudaCollectivesBenchOptions['communicator'],
): string {
  const engines = copyEngines ? ', copy engines' : '';
  return `GPU (${device.properties.name}, ${numSms} SMs, ${registers ? 'registered' : 'unregistered'} tensors${engines})`;
}

interface Warmed {
  readonly communicator: Communicator;
  readonly peer: NcclLoop | undefined;
  readonly workload: CollectivesWorkload;
  readonly memory: ReturnType<typeof makeBenchMemory>;
}

interface Measuring extends Warmed {
  readonly timer: StreamTimer;
  /** The round in which results are checked. */
  readonly isFirst: boolean;
}

async function measureEntry({ kind, plan, outOfPlace, inPlace }: Entry, of: Measuring): Promise<void> {
  const { communicator, peer, workload, memory, timer, isFirst } = of;
  const call = new BenchedCall(communicator, workload, { kind, bytes: plan.bytes, memory });
  for (const [way, measured] of [outOfPlace, inPlace].entries()) {
    const isInPlace = way === 1;
    if (isFirst) measured.wrong = plan.bytes <= MAX_COMPARED ? await call.countWrong(isInPlace) : undefined;
    measured.own.push(await timer.measure(call.prepare(isInPlace), plan));
    if (peer) measured.peer.push(await timer.measure(peer.prepare(kind, call, isInPlace, workload), plan));
  }
}

/** `bytes`: the first size of the kind. */
async function warm(kind: Entry['kind'], bytes: number | undefined, of: Warmed): Promise<void> {
  if (bytes === undefined || bytes > MAX_WARMED) return;
  const { communicator, peer, workload, memory } = of;
  const call = new BenchedCall(communicator, workload, { kind, bytes, memory });
  const times = communicator.routes.includes('network') ? WARMUP_CALLS_ACROSS_HOSTS : WARMUP_CALLS;
  for (const isInPlace of [false, true]) {
    await repeat(call.prepare(isInPlace), times);
    if (peer) await repeat(peer.prepare(kind, call, isInPlace, workload), times);
  }
}

function entriesOf(workload: CollectivesWorkload): Entry[] {
  const plans = sizePlans(workload).map((plan) => withIterations(plan, workload));
  return workload.kinds.flatMap((kind) =>
    plans
      .filter(({ bytes }) => countOf(kind, bytes, workload) > 0)
      .map((plan): Entry => ({ kind, plan, outOfPlace: newMeasured(), inPlace: newMeasured() })),
  );
}

function withIterations(plan: Entry['plan'], { iterations }: CollectivesWorkload): Entry['plan'] {
  if (iterations > 0) return plan;
  const count = cudaIterationsOf(plan.bytes);
  return { ...plan, iterations: count, warmup: Math.ceil(count / 4) };
}

class StreamTimer {
  readonly #device: CudaDevice;
  readonly #communicator: Communicator;

  constructor(device: CudaDevice, communicator: Communicator) {
    this.#device = device;
    this.#communicator = communicator;
  }

  /** µs of a call. */
  async measure(call: () => unknown, { warmup, iterations }: Entry['plan']): Promise<number> {
    await repeat(call, warmup);
    await this.#communicator.barrier();
    using begin = this.#device.createEvent({ timing: true });
    using end = this.#device.createEvent({ timing: true });
    begin.record(this.#device.stream);
    await repeat(call, iterations);
    end.record(this.#device.stream);
    await end.wait();
    return (end.millisecondsSince(begin) / iterations) * 1000;
  }
}

async function repeat(call: () => unknown, times: number): Promise<void> {
  for (let time = 0; time < times; time++) {
    const result = call();
    if (result instanceof Promise && result !== Communicator.done) await result;
  }
}

/** Times become those of the slowest rank, and wrong elements those of all ranks. */
async function takeSlowest(world: World, entries: readonly Entry[]): Promise<void> {
  const ways = entries.flatMap(({ outOfPlace, inPlace }) => [outOfPlace, inPlace]);
  const mine = ways.map(({ own, peer, wrong }) => ({ own, peer, wrong: wrong ?? null }));
  const all = await world.allGather('times', mine);
  for (const [index, way] of ways.entries()) {
    const ofRanks = all.map((rank) => rank[index]!);
    for (const side of ['own', 'peer'] as const) {
      for (const round of way[side].keys()) way[side][round] = Math.max(...ofRanks.map((rank) => rank[side][round]!));
    }
    if (way.wrong !== undefined) way.wrong = ofRanks.reduce((sum, { wrong }) => sum + (wrong ?? 0), 0);
  }
}
