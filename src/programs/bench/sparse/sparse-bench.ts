// Measures sparse all-reduces against dense ones of the same workers, round by round, and compares every result in full.
import { type Communicator, SparseAllReduce, type SparseTraffic } from '../../../collectives/index.ts';
import { median } from '../../../core/quantile.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { RankGroup, World } from '../../../world/index.ts';
import { loadAverage, machineDocument } from '../machine.ts';
import { samplePlacement } from '../machine.ts';
import { BenchTensors } from './bench-tensors.ts';
import { measureBitmap } from './bitmap-rates.ts';
import { measureCudaBitmap } from './cuda-bitmap-rates.ts';
import type { BitmapRates, SparseBenchReport, SparseRow, SparseWorkload } from './sparse-results.ts';
import { sparseValues, tensorBytes } from './sparse-tensor.ts';

/** What is told on the way, on rank 0. */
export interface SparseProgress {
  /** Of each round: µs of the slowest worker. */
  readonly round: (round: number, microseconds: number, density: number) => void;
  /** Of a rank whose result differs: where first, what it is and what it should be. */
  readonly wrong: (rank: number, at: number, got: number, expected: number) => void;
}

interface Bench {
  readonly workload: SparseWorkload;
  readonly workers: RankGroup;
  readonly reducer: SparseAllReduce;
  readonly tensors: BenchTensors;
  readonly progress: SparseProgress;
}

export interface SparseBenchOptions {
  readonly workload: SparseWorkload;
  /** undefined of a rank that only aggregates. */
  readonly workers: RankGroup | undefined;
  readonly progress: SparseProgress;
}

/** Collective; rank 0 gets the report. `device`: of this rank. */
export async function runSparseBench(
  world: World,
  device: CpuDevice | CudaDevice,
  { workload, workers, progress }: SparseBenchOptions,
): Promise<SparseBenchReport | undefined> {
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
  const before = { load: loadAverage(), placement: world.rank === 0 ? await samplePlacement() : undefined };
  await using tensors = await BenchTensors.create(workers, device, workload);
  const bitmap = world.rank === 0 ? await bitmapOf(device, tensors, workload) : undefined;
  await workers.barrier('bitmap');
  const bench: Bench = { workload, workers, reducer, tensors, progress };
  const rows: SparseRow[] = [];
  for (const density of workload.densities) rows.push(await measure(bench, density));
  if (world.rank !== 0) return undefined;
  return {
    schema: 'weftline.bench.sparse/1',
    machine: machineDocument(),
    loadAverage: { before: before.load, after: loadAverage() },
    placement: { before: before.placement!, after: await samplePlacement() },
    workload,
    ...(device.kind === 'cuda' && { gpu: device.properties.name }),
    route: routeOf(tensors.communicator),
    rows,
    crossing: crossingOf(rows),
    bitmap: bitmap!,
  };
}

function bitmapOf(
  device: CpuDevice | CudaDevice,
  { sparse }: BenchTensors,
  workload: SparseWorkload,
): Promise<BitmapRates> | BitmapRates {
  if (device.kind === 'cuda') return measureCudaBitmap(device, sparse, workload);
  return measureBitmap(device, sparse, workload);
}

async function measure(bench: Bench, density: number): Promise<SparseRow> {
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
    sentTheory: density * bytes,
    receivedTheory: (1 - (1 - density) ** workload.workers) * bytes,
    messages: mean((one) => one.messages),
    sparseMicroseconds: median(times.sparse),
    denseMicroseconds: median(times.dense),
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
  const { sparse: got, dense: expected } = await tensors.results();
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

function routeOf({ routes }: Communicator): SparseBenchReport['route'] {
  const kinds = new Set(routes.filter((route) => route !== 'self'));
  if (kinds.size === 2) return 'both';
  return [...kinds][0] ?? 'self';
}

/** Where the ratio of the times passes 1, by a straight line between neighbours on a logarithmic axis. */
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
