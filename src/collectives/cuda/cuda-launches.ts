// The kernels of a Communicator, ready to launch: what is the same for all calls is set once.
import { reductionFormats } from '../../abi/element-formats.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import {
  collectiveCopyKernels,
  collectiveMessageKernels,
  collectiveReductionKernels,
} from '../../device/cuda/kernels/collectives.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type { ReducedDType } from '../collective-call.ts';
import type { CudaCollectiveRegions } from './cuda-regions.ts';
import type { collectiveArguments, messageArguments } from '../../abi/collectives.ts';

type CollectivePlan = LaunchPlan<keyof typeof collectiveArguments.offset>;
type MessagePlan = LaunchPlan<keyof typeof messageArguments.offset>;

export interface CollectiveLaunches {
  readonly copies: CollectivePlan;
  readonly reductions: Readonly<Record<ReducedDType, CollectivePlan>>;
  readonly messages: MessagePlan;
}

const THREADS = 512;
/** More lanes than this help a message no more. */
const LANE_BYTES = 32_768;

/** Compiles. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadCollectiveLaunches(device: CudaDevice): Promise<CollectiveLaunches> {
  const shape = { grid: 1, block: THREADS };
  const reducing = async (FORMAT: number): Promise<CollectivePlan> => {
    const { collectiveReductions } = await device.loadKernels(collectiveReductionKernels, { FORMAT });
    return collectiveReductions.plan(shape);
  };
  const [{ collectiveCopies }, { collectiveMessages }, bf16, f32, i32] = await Promise.all([
    device.loadKernels(collectiveCopyKernels),
    device.loadKernels(collectiveMessageKernels),
    reducing(reductionFormats.bf16),
    reducing(reductionFormats.f32),
    reducing(reductionFormats.i32),
  ]);
  return {
    copies: collectiveCopies.plan(shape),
    messages: collectiveMessages.plan(shape),
    reductions: { bf16, f32, i32 },
  };
}

interface BoundCollectives {
  readonly window: CudaWindow;
  readonly regions: CudaCollectiveRegions;
  readonly trap: number;
  /** Addresses of CollectiveBlock and of MessageBlock of each block, and of the table of registrations. */
  readonly blocks: Tensor;
  readonly messageBlocks: Tensor;
  readonly registrations: number;
}

export function bindCollectives({ copies, reductions, messages }: CollectiveLaunches, of: BoundCollectives): void {
  const { window, regions, trap, registrations } = of;
  for (const { arguments: set } of [copies, ...Object.values(reductions)]) {
    for (const [index, address] of window.addresses.entries()) set.set('peers', address, index);
    set.set('blocks', of.blocks.address);
    set.set('registrations', registrations);
    set.set('trap', trap);
    set.set('windowArrivals', regions.arrivals);
    set.set('windowRecords', regions.records);
    set.set('windowSlots', regions.slots);
    set.set('slotBytes', regions.slotBytes);
    set.set('ranks', window.addresses.length);
    set.set('rank', window.index);
  }
  const set = messages.arguments;
  for (const [index, address] of window.addresses.entries()) set.set('peers', address, index);
  set.set('blocks', of.messageBlocks.address);
  set.set('registrations', registrations);
  set.set('trap', trap);
  set.set('windowFlags', regions.flags);
  set.set('windowPosts', regions.posts);
  set.set('windowChunks', regions.chunks);
  set.set('chunkBytes', regions.chunkBytes);
  set.set('laneBytes', LANE_BYTES);
  set.set('maxLanes', regions.lanes);
  set.set('ranks', window.addresses.length);
  set.set('rank', window.index);
}

/** Lanes that a message of so many bytes has, as the kernel counts them. */
export function lanesOf(bytes: number, { lanes }: CudaCollectiveRegions): number {
  return Math.max(1, Math.min(lanes, Math.ceil(bytes / LANE_BYTES)));
}
