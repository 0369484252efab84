// Makes the engine of a Communicator on GPUs of one host: the ranks agree, compile, then make windows together.
import { COLLECTIVE_MAX_BLOCKS, COLLECTIVE_MAX_RANKS, collectiveBlock, messageBlock } from '../../abi/collectives.ts';
import { agreeOn } from '../../group/agree.ts';
import { CudaCallOrder } from '../../group/cuda-call-order.ts';
import { CudaCalls } from '../../group/cuda-calls.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';
import { CudaWindow } from '../../windows/cuda-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { CollectiveEngine } from '../collective-engine.ts';
import type { CheckedCommunicatorOptions } from '../communicator-options.ts';
import { CudaCollectives } from './cuda-collectives.ts';
import { bindCollectives, type CollectiveLaunches, loadCollectiveLaunches } from './cuda-launches.ts';
import { cudaCollectiveRegions } from './cuda-regions.ts';
import { explainCollectiveFailure } from './kernel-failures.ts';
import { Registrations } from './registrations.ts';

/** What a rank has before the ranks agree that all have it. */
interface Prepared extends Disposable {
  readonly launches: CollectiveLaunches;
  readonly blocks: Tensor;
  readonly messageBlocks: Tensor;
  readonly table: Tensor<'i64'>;
}

/** Collective; fails alike on all ranks. */
export async function createCudaCollectives(
  group: RankGroup,
  device: CudaDevice,
  { pieceBytes, numSms, directBytes, copyEngines, ...wait }: CallWait & CheckedCommunicatorOptions,
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const config = { pieceBytes, numSms, directBytes, copyEngines, device: device.kind };
  await agreeOn(group, { what, config, prepare: () => requireCudaRanks(group) }, wait);
  // Compiling may fail or take long on one rank alone, so the ranks meet again after it.
  const launches = await loadCollectiveLaunches(device).catch((error: unknown) => error as Error);
  const prepare = (): Prepared => {
    if (launches instanceof Error) throw launches;
    const { set, made } = TensorSet.make(device, (tensors) => ({
      // Where each block counts from.
      blocks: tensors.empty('u8', [COLLECTIVE_MAX_BLOCKS, collectiveBlock.size]),
      messageBlocks: tensors.empty('u8', [2 * COLLECTIVE_MAX_BLOCKS, messageBlock.size]),
      table: Registrations.makeTable(tensors),
    }));
    for (const tensor of [made.blocks, made.messageBlocks]) device.setBytes(tensor, 0);
    return { ...made, launches, [Symbol.dispose]: () => set[Symbol.dispose]() };
  };
  const parts = await agreeOn(group, { what: `${what} kernels`, config: {}, prepare, release }, wait);
  const made: { window?: CudaWindow } = {};
  try {
    const regions = cudaCollectiveRegions({ ranks: group.size, pieceBytes, numSms });
    const window = await CudaWindow.create({ ...wait, group, device, name: 'collectives', bytes: regions.bytes });
    made.window = window;
    await device.stream.idle(remaining(wait));
    const calls = new CudaCalls(group, device, { explain: (trap) => explainCollectiveFailure(trap, group.ranks) });
    const registrations = new Registrations(group, device, parts.table);
    const { blocks, messageBlocks } = parts;
    const bound = { window, regions, trap: calls.traps.address, blocks, messageBlocks };
    bindCollectives(parts.launches, { ...bound, registrations: registrations.address });
    const order = new CudaCallOrder(device);
    return new CudaCollectives({
      device,
      group,
      numSms,
      directBytes,
      copyEngines,
      regions,
      window,
      calls,
      order,
      registrations,
      messageBlocks,
      memory: parts,
      launches: parts.launches,
    });
  } catch (error) {
    made.window?.[Symbol.dispose]();
    release(parts);
    throw error;
  }
}

function requireCudaRanks({ size }: RankGroup): void {
  if (size <= COLLECTIVE_MAX_RANKS) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `A Communicator on GPUs of one host has at most ${COLLECTIVE_MAX_RANKS} ranks, got ${size}: use a CpuDevice, or smaller groups (world.split)`,
    { details: { ranks: size } },
  );
}

function release(prepared: Prepared): void {
  prepared[Symbol.dispose]();
}
