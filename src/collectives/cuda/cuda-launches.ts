// The kernels of a Communicator, ready to launch: what is the same for all calls is set once.
import {
  COLLECTIVE_MAX_BLOCKS,
  COLLECTIVE_MAX_RANKS,
  COLLECTIVE_POSTS,
  type collectiveArguments,
  collectiveFailure,
  collectiveRecord,
  type messageArguments,
  messageFlags,
  messagePost,
} from '../../abi/collectives.ts';
import { reductionFormats } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type { ReducedDType } from '../collective-call.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

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
    const { collectiveReductions } = await device.loadKernels(kernelFiles.collectiveReduction, { FORMAT });
    return collectiveReductions.plan(shape);
  };
  const [{ collectiveCopies }, { collectiveMessages }, bf16, f32, i32] = await Promise.all([
    device.loadKernels(kernelFiles.collectiveCopy),
    device.loadKernels(kernelFiles.collectiveMessage),
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
  const calls = [copies, ...Object.values(reductions)];
  for (const { arguments: set } of [...calls, messages]) {
    for (const [index, address] of window.addresses.entries()) set.set('peers', address, index);
    set.set('registrations', registrations);
    set.set('trap', trap);
    set.set('ranks', window.addresses.length);
    set.set('rank', window.index);
  }
  for (const { arguments: set } of calls) {
    set.set('blocks', of.blocks.address);
    set.set('windowArrivals', regions.arrivals);
    set.set('windowRecords', regions.records);
    set.set('windowSlots', regions.slots);
    set.set('slotBytes', regions.slotBytes);
  }
  const set = messages.arguments;
  set.set('blocks', of.messageBlocks.address);
  set.set('windowFlags', regions.flags);
  set.set('windowPosts', regions.posts);
  set.set('windowChunks', regions.chunks);
  set.set('chunkBytes', regions.chunkBytes);
  set.set('laneBytes', LANE_BYTES);
  set.set('maxLanes', regions.lanes);
}

/** Lanes that a message of so many bytes has, as the kernel counts them. */
export function lanesOf(bytes: number, { lanes }: CudaCollectiveRegions): number {
  return Math.max(1, Math.min(lanes, Math.ceil(bytes / LANE_BYTES)));
}

// What lies where in the window of a CUDA rank of a Communicator.

/** Steps whose slots and words are in use at once, and chunks of a message. */
const IN_TURN = 2;
const SLOT_ALIGNMENT = 128;

interface CudaCollectiveShape {
  readonly ranks: number;
  readonly pieceBytes: number;
  /** Blocks of kernels at most. */
  readonly numSms: number;
}

export interface CudaCollectiveRegions {
  readonly bytes: number;
  readonly arrivals: number;
  readonly records: number;
  readonly flags: number;
  readonly posts: number;
  readonly chunks: number;
  readonly slots: number;
  /** Bytes that a block takes from one rank in a step. */
  readonly slotBytes: number;
  readonly chunkBytes: number;
  /** Pairs of a block that sends and one that receives. */
  readonly lanes: number;
}

/** Failures come first. Offsets are multiples of 128. */
export function cudaCollectiveRegions({ ranks, pieceBytes, numSms }: CudaCollectiveShape): CudaCollectiveRegions {
  const lanes = Math.max(1, Math.floor(numSms / 2));
  const slotBytes = alignUp(Math.ceil(pieceBytes / numSms), SLOT_ALIGNMENT);
  const chunkBytes = alignUp(Math.ceil(pieceBytes / lanes / IN_TURN), SLOT_ALIGNMENT);
  const cells = IN_TURN * COLLECTIVE_MAX_BLOCKS * COLLECTIVE_MAX_RANKS;
  let end = 0;
  const take = (bytes: number): number => {
    const begin = end;
    end += alignUp(bytes, SLOT_ALIGNMENT);
    return begin;
  };
  take(COLLECTIVE_MAX_RANKS * collectiveFailure.size);
  const regions = {
    arrivals: take(cells * 8),
    records: take(cells * collectiveRecord.size),
    flags: take(lanes * ranks * messageFlags.size),
    posts: take(lanes * ranks * COLLECTIVE_POSTS * messagePost.size),
    chunks: take(lanes * ranks * IN_TURN * chunkBytes),
    slots: take(numSms * IN_TURN * ranks * slotBytes),
  };
  return { ...regions, bytes: end, slotBytes, chunkBytes, lanes };
}
