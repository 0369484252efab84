// Measures collectives of ranks, each operation in turn with the same of the peer, round by round: what CPUs and GPUs share, and
// the bench of CPU ranks.
import { Communicator, type CommunicatorOptions, type CollectiveResult } from '../../../collectives/index.ts';
import { median } from '../../../core/quantile.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { World } from '../../../world/index.ts';
import { measureInTurn, type Progress, type Samples } from '../harness.ts';
import { recordRun } from '../machine.ts';
import {
  type BenchedKind,
  busFactor,
  type CollectivesWorkload,
  countOf,
  type SizePlan,
  sizePlans,
  hasParts,
} from './collectives-workload.ts';
import { buildMpiLoop } from '../peer-programs.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { dtypes, fromBf16, toBf16 } from '../../../core/dtype.ts';

/** Ranks that wait for the peer's loop. */
const PEER_TIMEOUT_MS = 600_000;
/** Sizes up to this one are small. */
const SMALL_BYTES = 4096;

export type CollectivesBenchReport = NonNullable<Awaited<ReturnType<typeof measureCollectives>>>;
export type CollectiveTimes = ReturnType<typeof timesOf>;

/** A kind and size with the times of both ways. */
export type CollectiveRow = { readonly kind: BenchedKind } & Readonly<Record<'bytes' | 'count', number>> &
  Readonly<Record<'outOfPlace' | 'inPlace', CollectiveTimes>>;

/** How calls of a kind of device are measured, and what with. */
interface CollectivesSetup {
  readonly world: World;
  readonly communicator: Communicator;
  readonly workload: CollectivesWorkload;
  readonly memory: BenchMemory;
  readonly plans: readonly SizePlan[];
  /** "CPU", or "GPU" with how tensors and multiprocessors were used. */
  readonly ranksOn: string;
  /** Runs until the engine has compiled what the loops run. */
  readonly warm: (kind: BenchedKind) => Promise<void>;
  /** µs of a call on this rank, all ranks beginning together. */
  readonly time: (call: () => unknown, plan: SizePlan) => Promise<number>;
  /** Results of larger calls are not compared. */
  readonly maxCompared: number;
  /** "mpirun (Open MPI) 4.1.4", "NCCL 2.28.9" */
  readonly peer: string | undefined;
  /** The peer's call, to be measured the same way. */
  readonly preparePeer?: ((kind: BenchedKind, call: BenchedCall, isInPlace: boolean) => () => unknown) | undefined;
  /** Runs the peer's own loop over all sizes of a kind, while the other ranks sleep: µs by plan and way. */
  readonly runPeer?: ((kind: BenchedKind, plans: readonly SizePlan[]) => Promise<number[][] | undefined>) | undefined;
  readonly progress: Progress | undefined;
}

interface Measured {
  readonly kind: BenchedKind;
  readonly plan: SizePlan;
  readonly isInPlace: boolean;
  /** Times of the peer's own loop, by round. */
  readonly peer: number[];
  isChecked: boolean;
}

/** Collective; rank 0 gets the report. */
export async function measureCollectives(of: CollectivesSetup) {
  const { world, communicator, workload, memory, progress, maxCompared } = of;
  const { kinds, rounds } = workload;
  const ways = kinds.flatMap((kind) =>
    of.plans
      .filter(({ bytes }) => countOf(kind, bytes, workload) > 0)
      .flatMap((plan) =>
        [false, true].map((isInPlace): Measured => ({ kind, plan, isInPlace, peer: [], isChecked: false })),
      ),
  );
  const warmed = new Set<BenchedKind>();
  let done = 0;
  const measure = async (way: Measured) => {
    const { kind, plan, isInPlace } = way;
    if (!warmed.has(kind)) await of.warm(kind);
    warmed.add(kind);
    const call = new BenchedCall(communicator, workload, { kind, bytes: plan.bytes, memory });
    const wrong = way.isChecked || plan.bytes > maxCompared ? 0 : await call.countWrong(isInPlace);
    way.isChecked = true;
    const own = await of.time(call.prepare(isInPlace), plan);
    const peer = of.preparePeer && (await of.time(of.preparePeer(kind, call, isInPlace), plan));
    if (ways.findLast((other) => other.kind === kind) === way) await runPeerLoop(of, ways, kind);
    progress?.(++done, ways.length * rounds);
    return { own, wrong, ...(peer !== undefined && { peer }) };
  };
  const schema = 'weftline.bench.collectives/1' as const;
  return await recordRun(world, { schema, workload, ranksOn: of.ranksOn, peer: of.peer }, async () => {
    const inTurn = { warmup: 0, iterations: rounds, order: inOrder };
    const samples = await measureInTurn(world, ways, inTurn, measure);
    const times = samples.map((one, index) => timesOf(ways[index]!, one, of));
    const rows = ways.flatMap(({ kind, plan: { bytes }, isInPlace }, index) => {
      if (isInPlace) return [];
      const count = countOf(kind, bytes, workload);
      return [{ kind, bytes, count, outOfPlace: times[index]!, inPlace: times[index + 1]! }];
    });
    return { rows, ratios: of.peer === undefined ? [] : ratiosOf(rows) };
  });
}

/** Sizes of an operation follow each other, and then its peer's loop. */
function inOrder(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index);
}

async function runPeerLoop(
  { world, runPeer }: CollectivesSetup,
  ways: readonly Measured[],
  kind: BenchedKind,
): Promise<void> {
  if (runPeer === undefined) return;
  const ofKind = ways.filter((way) => way.kind === kind);
  const plans = ofKind.filter(({ isInPlace }) => !isInPlace).map(({ plan }) => plan);
  const times = await runPeer(kind, plans);
  for (const way of ofKind) {
    if (times !== undefined) way.peer.push(times[plans.indexOf(way.plan)]![way.isInPlace ? 1 : 0]!);
  }
  await world.barrier('peer', { timeoutMs: PEER_TIMEOUT_MS });
}

/** Medians of the rounds, of the slowest rank. */
function timesOf(
  { kind, plan: { bytes }, peer }: Measured,
  samples: Samples<'own' | 'wrong' | 'peer'>,
  { workload, maxCompared, preparePeer }: CollectivesSetup,
) {
  const microseconds = median(samples.slowest('own'));
  const algbw = bytes / microseconds / 1000;
  const peerTimes = preparePeer === undefined ? peer : samples.slowest('peer');
  const wrong = samples.ranks.flatMap((rank) => rank.wrong).reduce((sum, count) => sum + count, 0);
  return {
    /** µs of a call. */
    microseconds,
    /** GB/s: size / time, and that times what a link would carry of each byte. */
    algbw,
    busbw: algbw * busFactor(kind, workload.ranks),
    /** Elements of all ranks that differ from the reference; undefined where they were not compared. */
    wrong: bytes > maxCompared ? undefined : wrong,
    /** µs of the peer's call in the same rounds. */
    peerMicroseconds: peerTimes.length === 0 ? undefined : median(peerTimes),
  };
}

/** How many times as fast as the peer: geometric mean and worst, of all rows and both ways. */
function ratiosOf(rows: readonly CollectiveRow[]) {
  const kinds = [...new Set(rows.map(({ kind }) => kind))];
  return kinds.flatMap((kind) =>
    (['small', 'large'] as const).flatMap((sizes) => {
      const ratios = rows
        .filter((row) => row.kind === kind && row.bytes <= SMALL_BYTES === (sizes === 'small'))
        .flatMap(({ bytes, outOfPlace, inPlace }) =>
          [outOfPlace, inPlace].map(({ microseconds, peerMicroseconds }) => ({
            bytes,
            ratio: peerMicroseconds! / microseconds,
          })),
        );
      if (ratios.length === 0) return [];
      const worst = ratios.reduce((least, one) => (one.ratio < least.ratio ? one : least));
      const logs = ratios.reduce((sum, { ratio }) => sum + Math.log(ratio), 0);
      const geometricMean = Math.exp(logs / ratios.length);
      return [{ kind, sizes, geometricMean, worst: worst.ratio, worstBytes: worst.bytes }];
    }),
  );
}

/** Whether enqueued, done at once, or to be waited for. */
export async function repeat(call: () => unknown, times: number): Promise<void> {
  for (let time = 0; time < times; time++) {
    const result = call();
    if (result instanceof Promise && result !== Communicator.done) await result;
  }
}

/** Calls until the engine has compiled what the loops of CPU ranks run, for little data and for more. */
const warmups = [
  { bytes: 64, calls: 20_000 },
  { bytes: 65_536, calls: 1000 },
] as const;

/** Calls of a warm-up that usually has `calls`: fewer where few iterations are asked for. */
export function fewerCalls(calls: number, { iterations }: CollectivesWorkload): number {
  return iterations > 0 ? Math.min(calls, 10 * iterations) : calls;
}

export async function warmOnHost(
  workload: CollectivesWorkload,
  newCall: (bytes: number) => BenchedCall,
): Promise<void> {
  for (const { bytes, calls } of warmups) {
    const newOne = () => newCall(Math.min(bytes, workload.maxBytes));
    for (const isInPlace of [false, true]) await repeat(newOne().prepare(isInPlace), fewerCalls(calls, workload));
  }
}

/** µs of a call on this rank. */
export async function timeOnHost(
  communicator: Communicator,
  { warmup, iterations }: SizePlan,
  call: () => unknown,
): Promise<number> {
  await repeat(call, warmup);
  await communicator.barrier();
  const begin = performance.now();
  await repeat(call, iterations);
  return ((performance.now() - begin) / iterations) * 1000;
}

interface CollectivesBenchOptions {
  readonly workload: CollectivesWorkload;
  readonly compare: 'mpi' | undefined;
  readonly communicator: Pick<CommunicatorOptions, 'directBytes'>;
  readonly progress?: Progress;
}

/** The bench of CPU ranks. Collective; rank 0 gets the report. */
export async function runCollectivesBench(
  world: World,
  device: CpuDevice,
  { workload, compare, communicator: options, progress }: CollectivesBenchOptions,
): Promise<CollectivesBenchReport | undefined> {
  using peer = compare === 'mpi' && world.rank === 0 ? buildMpiLoop() : undefined;
  await using communicator = await Communicator.create(world, device, options);
  const memory = makeBenchMemory(device, workload);
  return await measureCollectives({
    world,
    communicator,
    workload,
    memory,
    plans: sizePlans(workload),
    ranksOn: 'CPU',
    warm: (kind) => warmOnHost(workload, (bytes) => new BenchedCall(communicator, workload, { kind, bytes, memory })),
    time: (call, plan) => timeOnHost(communicator, plan, call),
    maxCompared: Infinity,
    peer: peer?.version,
    runPeer: compare === undefined ? undefined : async (kind, plans) => peer?.run(kind, workload, plans),
    progress,
  });
}

// One collective under test: its tensors, filled with numbers whose results are known, its calls, and what came out wrong.

/** Small integers: exact in every dtype, and their sums over up to 16 ranks too. */
function valueOf(rank: number, element: number): number {
  return ((element * 7 + rank * 3) % 16) - 8;
}

const combine = {
  sum: (a: number, b: number): number => a + b,
  max: (a: number, b: number): number => Math.max(a, b),
  min: (a: number, b: number): number => Math.min(a, b),
} as const;

export class BenchedCall {
  readonly #communicator: Communicator;
  readonly #workload: CollectivesWorkload;
  readonly #kind: BenchedKind;
  readonly #large: Tensor<CollectivesWorkload['dtype']>;
  readonly #other: Tensor<CollectivesWorkload['dtype']>;
  readonly #count: number;

  /** `memory`: of `maxBytes` each. */
  constructor(
    communicator: Communicator,
    workload: CollectivesWorkload,
    { kind, bytes, memory }: { kind: BenchedKind; bytes: number; memory: BenchMemory },
  ) {
    this.#communicator = communicator;
    this.#workload = workload;
    this.#kind = kind;
    this.#count = countOf(kind, bytes, workload);
    const elements = hasParts(kind) ? this.#count * communicator.group.size : this.#count;
    this.#large = memory.first.slice(0, elements);
    this.#other = memory.second.slice(0, elements);
  }

  /** Elements of a rank's part, or of the whole. */
  get count(): number {
    return this.#count;
  }

  /** Addresses of what a peer's call of the same kind takes. */
  addresses(isInPlace: boolean): { readonly input: number; readonly output: number } {
    const part = this.#communicator.group.rank * this.#count * dtypes[this.#workload.dtype].bytes;
    const output = this.#large.address;
    if (!isInPlace) return { input: this.#other.address, output };
    if (this.#kind === 'allGather') return { input: output + part, output };
    if (this.#kind === 'reduceScatter') return { input: this.#other.address, output: this.#other.address + part };
    return { input: output, output };
  }

  /** The call, to be made again and again. */
  prepare(isInPlace: boolean): () => Promise<CollectiveResult> {
    const { op } = this.#workload;
    const { rank } = this.#communicator.group;
    const [input, output] = [this.#other, this.#large];
    const part = rank * this.#count;
    const of = this.#communicator;
    const apart = isInPlace ? undefined : input;
    switch (this.#kind) {
      case 'allReduce': {
        const args = { input: apart, output, op };
        return () => of.allReduce(args);
      }
      case 'reduce': {
        const args = { input: apart, output, op, root: 0 };
        return () => of.reduce(args);
      }
      case 'broadcast': {
        const args = { input: apart, output, root: 0 };
        return () => of.broadcast(args);
      }
      case 'allToAll': {
        const args = { input: apart, output };
        return () => of.allToAll(args);
      }
      case 'allGather': {
        const args = {
          input: isInPlace ? output.slice(part, part + this.#count) : input.slice(0, this.#count),
          output,
        };
        return () => of.allGather(args);
      }
      case 'reduceScatter':
      default: {
        const args = { input, output: isInPlace ? undefined : output.slice(0, this.#count), op };
        return () => of.reduceScatter(args);
      }
    }
  }

  /** Makes the call once with known numbers. Returns how many elements of this rank's result are wrong. */
  async countWrong(isInPlace: boolean): Promise<number> {
    const { rank, size } = this.#communicator.group;
    const own = (element: number): number => valueOf(rank, element);
    const isInput = isInPlace && this.#kind !== 'reduceScatter';
    const at = this.#kind === 'allGather' && isInPlace ? rank * this.#count : 0;
    await fill(isInput ? this.#large : this.#other, (element) => own(element - at));
    if (!isInput) await fill(this.#large, () => 99);
    await this.prepare(isInPlace)();
    const first = this.#kind === 'reduceScatter' && isInPlace ? rank * this.#count : 0;
    const isTold = this.#kind !== 'reduce' || rank === 0;
    if (!isTold) return 0;
    const view = await (this.#kind === 'reduceScatter' && isInPlace ? this.#other : this.#large).toHost();
    const results = this.#kind === 'reduceScatter' ? this.#count : view.length;
    let wrong = 0;
    for (let element = 0; element < results; element++) {
      const got = view[first + element]!;
      const number = this.#workload.dtype === 'bf16' ? fromBf16(got) : got;
      if (number !== this.#expected(element, rank, size)) wrong += 1;
    }
    return wrong;
  }

  #expected(element: number, rank: number, size: number): number {
    const count = this.#count;
    const source = hasParts(this.#kind) ? Math.floor(element / count) : 0;
    const within = element - source * count;
    if (this.#kind === 'broadcast') return valueOf(0, element);
    if (this.#kind === 'allGather') return valueOf(source, within);
    if (this.#kind === 'allToAll') return valueOf(source, rank * count + within);
    const place = this.#kind === 'reduceScatter' ? rank * count + element : element;
    let value = valueOf(0, place);
    for (let other = 1; other < size; other++) value = combine[this.#workload.op](value, valueOf(other, place));
    return value;
  }
}

/** Two tensors of the largest size, for calls of every size. */
interface BenchMemory {
  readonly first: Tensor<CollectivesWorkload['dtype']>;
  readonly second: Tensor<CollectivesWorkload['dtype']>;
}

export function makeBenchMemory(device: CpuDevice | CudaDevice, { dtype, maxBytes }: CollectivesWorkload): BenchMemory {
  const elements = Math.floor(maxBytes / dtypes[dtype].bytes);
  const make = (): BenchMemory['first'] => {
    const tensor = device.empty(dtype, [elements]);
    if (device.kind === 'cpu') tensor.view().fill(0);
    else device.setBytes(tensor, 0);
    return tensor;
  };
  return { first: make(), second: make() };
}

async function fill(tensor: Tensor<CollectivesWorkload['dtype']>, value: (element: number) => number): Promise<void> {
  const values = new dtypes[tensor.dtype].array(tensor.elements);
  for (let element = 0; element < values.length; element++) {
    const number = value(element);
    values[element] = tensor.dtype === 'bf16' ? toBf16(number) : number;
  }
  await tensor.fromHost(values);
}
