// Chooses the engine of a Communicator, by where its ranks and their memory are.
import type { CallWait } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { RankGroup } from '../world/rank-group.ts';
import type { CollectiveEngine } from './collective-engine.ts';
import { createHostEngine } from './host/create-host-engine.ts';

/** Collective. Fails with WL_UNSUPPORTED on every rank for what no engine does yet. */
export function createEngine(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  options: CallWait & { readonly pieceBytes: number },
): Promise<CollectiveEngine> {
  const hosts = group.topology.hosts.length;
  if (hosts > 1) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `Communicator: the ranks of this group are on ${hosts} hosts, and collectives across hosts are not built yet; use a group of ranks of one host`,
      { details: { hosts } },
    );
  }
  if (device.kind === 'cuda') {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'Communicator: collectives on GPUs (cuda) are not built yet; use a CpuDevice',
      { details: { device: device.kind } },
    );
  }
  return createHostEngine(group, device, options);
}
