// Chooses the engine of a Communicator, by where its ranks and their memory are.
import type { CallWait } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { RankGroup } from '../world/rank-group.ts';
import type { AlgorithmTable } from './algorithm-table.ts';
import type { CollectiveEngine } from './collective-engine.ts';
import { createCpuCollectives } from './cpu/create-cpu-collectives.ts';

/** Collective. Fails with WL_UNSUPPORTED on every rank for what no engine does yet. */
export function createEngine(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  options: CallWait & { readonly pieceBytes: number; readonly table: AlgorithmTable },
): Promise<CollectiveEngine> {
  if (device.kind === 'cuda') {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'Communicator: collectives on GPUs (cuda) are not built yet; use a CpuDevice',
      { details: { device: device.kind } },
    );
  }
  return createCpuCollectives(group, device, options);
}
