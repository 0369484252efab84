// The ceiling on GPUs: a kernel that copies the same rows between the same memory and does nothing else, in its best shape.
import type { benchCopyArguments } from '../../../../abi/bench-arguments.ts';
import { benchKernels } from '../../../../device/cuda/kernels/bench.ts';
import type { LaunchPlan } from '../../../../device/cuda/launch-plan.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import { summarize } from '../../statistics.ts';
import { type CopyOf, type CopyShape, copyShapes, usualCopyShape, stagedBytes } from './copy-shape.ts';
import type { CudaMeeting, FieldOf } from './meeting.ts';
import type { CudaStopwatch } from './stopwatch.ts';

/** Barriers, before what is staged, and what the kernels declare themselves. */
const BARRIER_BYTES = 1024;
const STATIC_BYTES = 1024;
/** Of all shapes, then of the few that were the fastest. */
const FIRST_ROUNDS = 2;
const FINALISTS = 6;
const FINAL_ROUNDS = 9;

export interface RowCopyOptions {
  readonly direction: 'push' | 'pull';
  readonly numSms: number;
  readonly tokens: number;
  /** Where row 0 is at each rank, as this process maps it. */
  readonly rows: readonly number[];
  readonly rowBytes: number;
  /** This rank's rows: what is pushed, or where what is pulled goes, one row per token. */
  readonly local: Tensor;
  /** Rows that travel beside them (the scales of fp8 rows). */
  readonly sides?: { readonly rows: readonly number[]; readonly bytes: number; readonly local: Tensor };
  /** i32 [tokens, ranks]: row of each token at each rank, -1 for none. */
  readonly table: Tensor<'i32'>;
  /** i32 [1], zero between kernels. */
  readonly counter: Tensor<'i32'>;
  /** True: no other shape than a usual one is tried. */
  readonly isOneShape: boolean;
}

type CopyLaunchPlan = LaunchPlan<FieldOf<typeof benchCopyArguments>>;

export interface RowCopy {
  readonly shape: CopyShape;
  readonly shapesTried: number;
  readonly launch: () => void;
}

/** Collective. Tries every shape that fits and keeps the fastest, unless one is to do. */
export async function fastestRowCopy(
  meeting: CudaMeeting,
  stopwatch: CudaStopwatch,
  options: RowCopyOptions,
): Promise<RowCopy> {
  const { world, device } = meeting;
  const { sharedBytesPerBlock } = device.properties;
  const of: CopyOf = {
    direction: options.direction,
    numSms: Math.min(options.numSms, device.properties.multiprocessors),
    ranks: world.size,
    rowBytes: options.rowBytes,
    room: sharedBytesPerBlock - BARRIER_BYTES - STATIC_BYTES,
  };
  const { benchPush, benchPull } = await device.loadKernels(benchKernels);
  const kernel = options.direction === 'push' ? benchPush : benchPull;
  const shapes = options.isOneShape ? [usualCopyShape(of)] : copyShapes(of);
  const trials = shapes.map((shape) => {
    const sharedBytes = BARRIER_BYTES + stagedBytes(of, shape);
    const plan = kernel.plan({ grid: shape.blocks, block: shape.warps * 32, sharedBytes });
    bindCopy(plan, meeting, options);
    plan.arguments.set('partBytes', shape.partBytes);
    plan.arguments.set('slots', shape.slots);
    return { shape, launch: () => launchCopy(plan, meeting) };
  });
  const [only] = trials;
  if (options.isOneShape) return { shape: only!.shape, shapesTried: 1, launch: only!.launch };
  const finalists = await trialRounds(meeting, stopwatch, trials, FIRST_ROUNDS);
  const [best] = await trialRounds(meeting, stopwatch, finalists.slice(0, FINALISTS), FINAL_ROUNDS);
  const { shape, launch } = best as Trial;
  return { shape, shapesTried: trials.length, launch };
}

interface Trial {
  readonly shape: CopyShape;
  readonly launch: () => void;
}

/** Collective. The trials, fastest first: by the median of rounds that take them in turn, of the slowest rank. */
async function trialRounds(
  { world }: CudaMeeting,
  stopwatch: CudaStopwatch,
  trials: readonly Trial[],
  rounds: number,
): Promise<Trial[]> {
  const times = trials.map((): number[] => []);
  // One more round, the first, warms up.
  for (let round = 0; round <= rounds; round += 1) {
    for (const [index, { launch }] of trials.entries()) {
      const time = await stopwatch.onDevice(launch);
      if (round > 0) times[index]?.push(time);
    }
  }
  const ofRanks = await world.allGather(
    'bench-shapes',
    times.map((values) => summarize(values).median),
  );
  return trials
    .map((trial, index) => ({ trial, slowest: Math.max(...ofRanks.map((medians) => medians[index] as number)) }))
    .toSorted((a, b) => a.slowest - b.slowest)
    .map(({ trial }) => trial);
}

function bindCopy({ arguments: set }: CopyLaunchPlan, meeting: CudaMeeting, options: RowCopyOptions): void {
  meeting.bind(set);
  for (const [rank, address] of options.rows.entries()) set.set('rows', address, rank);
  for (const [rank, address] of (options.sides?.rows ?? []).entries()) set.set('sides', address, rank);
  set.set('local', options.local.address);
  set.set('localSides', options.sides?.local.address ?? 0);
  set.set('table', options.table.address);
  set.set('counter', options.counter.address);
  set.set('tokens', options.tokens);
  set.set('rowBytes', options.rowBytes);
  set.set('sideBytes', options.sides?.bytes ?? 0);
}

function launchCopy(plan: CopyLaunchPlan, meeting: CudaMeeting): void {
  plan.arguments.set('openingEpoch', meeting.nextEpoch());
  plan.arguments.set('closingEpoch', meeting.nextEpoch());
  plan.launch();
}
