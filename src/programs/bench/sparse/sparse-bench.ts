// Measures sparse all-reduces against dense ones of the same workers, round by round, and compares every result in full.
import { reductionFormats } from '../../../abi/element-formats.ts';
import { Communicator, SparseAllReduce, type SparseTraffic } from '../../../collectives/index.ts';
import { dtypes, toBf16, type TypedArrayOf } from '../../../core/dtype.ts';
import { median } from '../../../core/quantile.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { RankGroup, World } from '../../../world/index.ts';
import { timeInTurn } from '../harness.ts';
import { recordRun } from '../machine.ts';

export interface SparseWorkload {
  readonly workers: number;
  /** Ranks that only add up; 0: every worker does. */
  readonly aggregators: number;
  /** Ranks from which an aggregator takes blocks at most; 0: from all workers. */
  readonly fanIn: number;
  readonly hosts: string;
  /** The place of the workers' tensors. */
  readonly device: 'cpu' | 'cuda';
  readonly elements: number;
  readonly dtype: 'f32' | 'i32' | 'bf16';
  /** Shares of blocks that a worker has, each measured in turn. */
  readonly densities: readonly number[];
  readonly blockSize: number;
  readonly messageSize: number;
  readonly slots: number;
  readonly warmups: number;
  readonly rounds: number;
}

/** What is told on the way, on rank 0. */
interface SparseProgress {
  /** Told the µs of the slowest worker in each round. */
  readonly round: (round: number, microseconds: number, density: number) => void;
  /** Told the first place of a rank whose result differs, what is there and what should be. */
  readonly wrong: (rank: number, at: number, got: number, expected: number) => void;
}

interface Bench {
  readonly workload: SparseWorkload;
  readonly workers: RankGroup;
  readonly reducer: SparseAllReduce;
  readonly tensors: BenchTensors;
  readonly progress: SparseProgress;
}

interface SparseBenchOptions {
  readonly workload: SparseWorkload;
  /** undefined of a rank that only aggregates. */
  readonly workers: RankGroup | undefined;
  readonly progress: SparseProgress;
}

export type SparseBenchReport = NonNullable<Awaited<ReturnType<typeof runSparseBench>>>;
export type SparseRow = Awaited<ReturnType<typeof measure>>;

/** Collective; rank 0 gets the report. `device`: of this rank. */
export async function runSparseBench(
  world: World,
  device: CpuDevice | CudaDevice,
  { workload, workers, progress }: SparseBenchOptions,
) {
  const { blockSize, messageSize, slots, fanIn, workers: count } = workload;
  const ranks = Array.from({ length: count }, (_, rank) => rank);
  const added = Array.from({ length: workload.aggregators }, (_, index) => count + index);
  const aggregators = added.length === 0 ? ranks : added;
  const tree = fanIn === 0 ? {} : { fanIn };
  const options = { aggregators, workers: ranks, blockSize, messageSize, slots, ...tree };
  await using reducer = await SparseAllReduce.create(world, device, options);
  if (workers === undefined) {
    await reducer.serve();
    return undefined;
  }
  await using tensors = await makeTensors(workers, device, workload);
  const head = {
    schema: 'weftline.bench.sparse/1' as const,
    workload,
    /** Name of rank 0's GPU, where tensors are on GPUs. */
    ...(device.kind === 'cuda' && { gpu: device.properties.name }),
    /** How bytes get from rank 0 to others. */
    route: routeOf(tensors.communicator),
  };
  return await recordRun(workers, head, async () => {
    const bitmap = world.rank === 0 ? await bitmapOf(device, tensors, workload) : undefined;
    await workers.barrier('bitmap');
    const bench: Bench = { workload, workers, reducer, tensors, progress };
    const rows = [];
    for (const density of workload.densities) rows.push(await measure(bench, density));
    /** `crossing`: the share of blocks from which on dense is faster, between the densities measured, if there is one. */
    return { rows, crossing: crossingOf(rows), bitmap: bitmap! };
  });
}

/** GB/s of the kernel that finds the blocks, and of a plain read of the same memory. */
async function bitmapOf(device: CpuDevice | CudaDevice, { sparse }: BenchTensors, workload: SparseWorkload) {
  if (device.kind === 'cpu') return measureBitmap(device, sparse, workload);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { measureCudaBitmap } = await import('./cuda-bitmap-rates.ts');
  return measureCudaBitmap(device, sparse, workload);
}

/** Bytes are those of a worker and call, in the mean of the workers; times are of the slowest worker, in µs. */
async function measure(bench: Bench, density: number) {
  const { workload, workers, reducer, tensors, progress } = bench;
  await tensors.fill(sparseValues(workload, density, workers.rank + 1));
  const times = { sparse: [] as number[], dense: [] as number[] };
  let wrong = 0;
  let traffic: SparseTraffic | undefined;
  for (let round = -workload.warmups; round < workload.rounds; round++) {
    await tensors.reset();
    const denseTime = await timed(bench, () => tensors.sumDense());
    const sparseTime = await timed(bench, async () => {
      traffic = await reducer.allReduce({ output: tensors.sparse });
      await tensors.settle();
    });
    wrong += await compare(bench);
    if (round < 0) continue;
    times.sparse.push(sparseTime);
    times.dense.push(denseTime);
    if (workers.rank === 0) progress.round(round, sparseTime, density);
  }
  const { ownBlocks, sumBlocks, blocks, sentBytes, receivedBytes, messages } = traffic!;
  const all = await workers.allGather('traffic', { ownBlocks, sentBytes, receivedBytes, messages, wrong });
  const mean = (of: (one: (typeof all)[number]) => number): number =>
    all.reduce((sum, one) => sum + of(one), 0) / all.length;
  const bytes = tensorBytes(workload);
  return {
    density,
    blocks,
    ownBlocks: mean((one) => one.ownBlocks),
    sumBlocks,
    sentBytes: mean((one) => one.sentBytes),
    receivedBytes: mean((one) => one.receivedBytes),
    /** Blocks alone, of workers whose blocks lie at random: d S, and (1 - (1 - d)^W) S. */
    sentTheory: density * bytes,
    receivedTheory: (1 - (1 - density) ** workload.workers) * bytes,
    messages: mean((one) => one.messages),
    /** Medians of the rounds, of the sparse sum and of `Communicator.allReduce` of the workers. */
    sparseMicroseconds: median(times.sparse),
    denseMicroseconds: median(times.dense),
    /** Elements of all workers and rounds that differ between the two. */
    wrong: all.reduce((sum, one) => sum + one.wrong, 0),
  };
}

/** µs of the slowest worker. */
async function timed({ tensors, workers }: Bench, call: () => Promise<unknown>): Promise<number> {
  await tensors.meet();
  const begin = performance.now();
  await call();
  const mine = (performance.now() - begin) * 1000;
  return Math.max(...(await workers.allGather('time', mine)));
}

/** Elements of this worker that differ. */
async function compare({ tensors, progress, workers }: Bench): Promise<number> {
  const { got, expected } = await tensors.results();
  if (Buffer.compare(bytesOf(got), bytesOf(expected)) === 0) return 0;
  let wrong = 0;
  for (let at = 0; at < got.length; at++) {
    if (got[at] === expected[at]) continue;
    if (wrong === 0) progress.wrong(workers.rank, at, got[at]!, expected[at]!);
    wrong++;
  }
  return wrong;
}

function bytesOf(view: ArrayBufferView): Buffer {
  return Buffer.from(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength);
}

function routeOf({ routes }: Communicator): 'window' | 'network' | 'both' | 'self' {
  const kinds = new Set(routes.filter((route) => route !== 'self'));
  if (kinds.size === 2) return 'both';
  return [...kinds][0] ?? 'self';
}

/** The density at which the ratio of the times passes 1, by a straight line between neighbours on a logarithmic axis. */
function crossingOf(rows: readonly SparseRow[]): number | undefined {
  const points = rows
    .map(({ density, denseMicroseconds, sparseMicroseconds }) => ({
      density,
      gain: Math.log(denseMicroseconds / sparseMicroseconds),
    }))
    .toSorted((a, b) => a.density - b.density);
  const at = points.findIndex(({ gain }, index) => gain <= 0 && (points[index - 1]?.gain ?? 0) > 0);
  if (at < 1) return undefined;
  const [below, above] = [points[at - 1]!, points[at]!];
  const share = below.gain / (below.gain - above.gain);
  return below.density * (above.density / below.density) ** share;
}

type Values = TypedArrayOf[SparseWorkload['dtype']];

type BenchTensors = Awaited<ReturnType<typeof makeTensors>>;

/** Collective over the workers. */
async function makeTensors(workers: RankGroup, device: CpuDevice | CudaDevice, workload: SparseWorkload) {
  const make = (on: CpuDevice | CudaDevice): Tensor => on.empty(workload.dtype, [workload.elements]);
  const settle = async (): Promise<void> => {
    if (device.kind === 'cuda') await device.stream.idle();
  };
  // The dense sums of GPUs of several hosts are those of their hosts.
  const isStaged = device.kind === 'cuda' && workers.topology.hosts.length > 1;
  const host = isStaged ? await CpuDevice.create() : device;
  const communicator = await Communicator.create(workers, host);
  const staged = isStaged ? make(host) : undefined;
  const [pristine, dense, sparse] = [make(device), make(device), make(device)];
  return {
    sparse,
    communicator,
    /** Resolves when what was enqueued on the device is done. */
    settle,
    fill: (values: Values): Promise<void> => pristine.fromHost(values),
    /** Leaves `sparse` as the worker had it before any sum. */
    reset: async (): Promise<void> => {
      const { address, bytes } = pristine;
      if (device.kind === 'cpu') sparse.view().set(pristine.view() as never);
      else device.context.call('cuMemcpyDtoDAsync', sparse.address, address, bytes, device.stream.handle);
      await settle();
    },
    sumDense: async (): Promise<void> => {
      if (staged === undefined) {
        await communicator.allReduce({ input: pristine, output: dense });
        await settle();
        return;
      }
      await staged.fromHost(await pristine.toHost());
      await communicator.allReduce({ output: staged });
      await dense.fromHost(await staged.toHost());
    },
    /** Waits for all workers. */
    meet: async (): Promise<void> => {
      await communicator.barrier();
      if (staged === undefined) await settle();
    },
    results: async () => ({ got: await valuesOf(sparse), expected: await valuesOf(dense) }),
    async [Symbol.asyncDispose](): Promise<void> {
      await communicator.close();
      for (const tensor of [pristine, dense, sparse, staged]) tensor?.close();
    },
  };
}

/** The values, in place where that can be. */
function valuesOf(tensor: Tensor): Promise<Values> | Values {
  return (tensor.device.kind === 'cpu' ? tensor.view() : tensor.toHost()) as Promise<Values> | Values;
}

/** Exactly round(density * blocks) blocks have ones: any of them is as likely as any other. */
function sparseValues(
  { blockSize, dtype, elements }: SparseWorkload,
  density: number,
  seed: number,
): TypedArrayOf[SparseWorkload['dtype']] {
  const values = new dtypes[dtype].array(elements) as TypedArrayOf[SparseWorkload['dtype']];
  const blocks = Math.ceil(elements / blockSize);
  const one = dtype === 'bf16' ? toBf16(1) : 1;
  const next = seededRandom(seed);
  let left = Math.round(density * blocks);
  for (let block = 0; block < blocks; block++) {
    // The chance of a block is how many are left to choose over how many blocks are left.
    if (next() * (blocks - block) >= left) continue;
    left--;
    values.fill(one, block * blockSize, Math.min((block + 1) * blockSize, elements));
  }
  return values;
}

export function tensorBytes({ dtype, elements }: SparseWorkload): number {
  return elements * dtypes[dtype].bytes;
}

/** How fast the kernel finds blocks that are not zero, against a plain read of the same memory by the C library. */
const BITMAP_ROUNDS = { warmup: 2, iterations: 15 } as const;

/** `tensor` becomes zero; its blocks are all read then, as those of a sparse tensor are. */
async function measureBitmap(device: CpuDevice, tensor: Tensor, { blockSize, dtype }: SparseWorkload) {
  const bytes = device.hostView('u8', tensor.address, tensor.bytes);
  bytes.fill(0);
  const blockBytes = (tensor.bytes / tensor.elements) * blockSize;
  using bitmap = device.allocate(Math.ceil(tensor.bytes / blockBytes));
  const text = Buffer.from(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length);
  const format = reductionFormats[dtype];
  const { kernels } = device;
  const mark = (): number =>
    kernels.markBlocks(tensor.address, tensor.bytes, blockBytes, format, 0, bitmap.address, tensor.address);
  // One byte, which memchr looks for and never finds.
  const read = (): number => text.indexOf(1);
  const [marking, reading] = await timeInTurn([{ run: mark }, { run: read }], BITMAP_ROUNDS);
  return { bitmap: tensor.bytes / median(marking!) / 1e3, read: tensor.bytes / median(reading!) / 1e3 };
}
