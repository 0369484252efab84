// The kernels of an EpBuffer on a GPU, prepared once: how many blocks and warps, and what shared memory they stage in.
import {
  EP_SYNC_BYTES,
  type epCombineArguments,
  type epDispatchArguments,
  type epPrepareArguments,
} from '../abi/ep-arguments.ts';
import type { Layout } from '../abi/layout.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { epCombineKernels, epDispatchKernels, epPrepareKernels } from '../device/cuda/kernels/ep.ts';
import type { CudaKernel } from '../device/cuda/kernel.ts';
import type { LaunchPlan } from '../device/cuda/launch-plan.ts';
import type { Tensor } from '../device/tensor.ts';
import { type EpRegion, exchangeRecordBytes } from './buffer-size.ts';
import type { CudaHostPlan } from './cuda-host-plan.ts';
import { BARRIER_BYTES, gatherShape, stagingShape } from './cuda-shapes.ts';
import type { EpScope } from './scope.ts';

type Names<L> = L extends Layout<infer Name> ? Name : never;

export interface CudaLaunches {
  readonly prepare: LaunchPlan<Names<typeof epPrepareArguments>>;
  /** By the dtype of the rows. */
  readonly dispatch: Readonly<Record<'bf16' | 'fp8e4m3', LaunchPlan<Names<typeof epDispatchArguments>>>>;
  readonly combine: LaunchPlan<Names<typeof epCombineArguments>>;
}

/** Choices that a prepare kernel keeps in registers, and the threads that fit beside them. */
const PREPARE_VARIANTS = [
  { columns: 8, threads: 1024 },
  { columns: 32, threads: 512 },
] as const;
/** What the kernels declare themselves besides. */
const STATIC_BYTES = 1024;

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadLaunches({ device, config, world }: EpScope<CudaDevice>): Promise<CudaLaunches> {
  const variant = PREPARE_VARIANTS.find(({ columns }) => config.maxTopk <= columns) ?? PREPARE_VARIANTS[1];
  const [{ epPrepare }, { epDispatch }, { epCombine }] = await Promise.all([
    device.loadKernels(epPrepareKernels, { COLUMNS: variant.columns }),
    device.loadKernels(epDispatchKernels),
    device.loadKernels(epCombineKernels),
  ]);
  const { multiprocessors, sharedBytesPerBlock } = device.properties;
  const grid = Math.min(config.numSms, multiprocessors);
  const room = sharedBytesPerBlock - BARRIER_BYTES - STATIC_BYTES;
  const rowBytes = config.hidden * 2;
  const { partBytes, stageBytes, ...shape } = gatherShape(room, rowBytes, { usual: world.size, most: world.size });
  const combine = epCombine.plan({ grid, ...shape });
  combine.arguments.set('rowBytes', rowBytes);
  combine.arguments.set('stageBytes', stageBytes);
  combine.arguments.set('partBytes', partBytes);
  return {
    prepare: epPrepare.plan({ grid: 1, block: variant.threads }),
    dispatch: {
      bf16: dispatchPlan(epDispatch, { grid, room, rowBytes }),
      fp8e4m3: dispatchPlan(epDispatch, { grid, room, rowBytes: config.hidden }),
    },
    combine,
  };
}

/** Addresses and counts that stay the same for all calls of a buffer. */
export function bindLaunches(
  { prepare, dispatch, combine }: CudaLaunches,
  { world, config, size, device }: EpScope<CudaDevice>,
  bound: { readonly addresses: readonly number[]; readonly hostPlan: CudaHostPlan; readonly counter: Tensor },
): void {
  const region = (name: EpRegion): number => EP_SYNC_BYTES + size.regions[name].offset;
  for (const plan of [prepare, dispatch.bf16, dispatch.fp8e4m3, combine]) {
    for (const [rank, address] of bound.addresses.entries()) plan.arguments.set('peers', address, rank);
    plan.arguments.set('ranks', world.size);
    plan.arguments.set('rank', world.rank);
    plan.arguments.set('trap', device.traps.address);
  }
  prepare.arguments.set('hostPlan', bound.hostPlan.address);
  prepare.arguments.set('hostExperts', bound.hostPlan.expertsAddress);
  prepare.arguments.set('experts', config.numExperts);
  prepare.arguments.set('exchangeOffset', region('exchange'));
  prepare.arguments.set('recordWords', exchangeRecordBytes(world.size, config.numExperts) / 4);
  for (const plan of [dispatch.bf16, dispatch.fp8e4m3]) {
    plan.arguments.set('counter', bound.counter.address);
    plan.arguments.set('expertsPerRank', config.numExperts / world.size);
    plan.arguments.set('rowsOffset', region('rows'));
    plan.arguments.set('scalesOffset', region('scales'));
    plan.arguments.set('topkOffset', region('topkIdx'));
    plan.arguments.set('weightsOffset', region('topkWeights'));
    plan.arguments.set('sourceOffset', region('sourceToken'));
  }
  combine.arguments.set('counter', bound.counter.address);
  combine.arguments.set('rowsOffset', region('combineRows'));
  combine.arguments.set('weightsOffset', region('combineWeights'));
}

function dispatchPlan(
  kernel: CudaKernel<Names<typeof epDispatchArguments>>,
  { grid, room, rowBytes }: { grid: number; room: number; rowBytes: number },
): CudaLaunches['dispatch']['bf16'] {
  const { partBytes, ...shape } = stagingShape(room, rowBytes);
  const plan = kernel.plan({ grid, ...shape });
  plan.arguments.set('rowBytes', rowBytes);
  plan.arguments.set('stageBytes', partBytes);
  return plan;
}
