// Chooses the engine of a Communicator, by where its ranks and their memory are.
import type { CallWait } from '../core/deadline.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { RankGroup } from '../world/rank-group.ts';
import type { AlgorithmTable } from './algorithm-table.ts';
import type { CollectiveEngine } from './collective-engine.ts';
import type { CheckedCommunicatorOptions } from './communicator-options.ts';
import { createCpuCollectives } from './cpu/create-cpu-collectives.ts';
import { createCudaCollectives } from './cuda/create-cuda-collectives.ts';
import { createHostsCollectives } from './hosts/create-hosts-collectives.ts';

/** Collective. Fails with WL_UNSUPPORTED on every rank for what no engine does yet. */
export function createEngine(
  group: RankGroup,
  device: CpuDevice | CudaDevice,
  options: CallWait & CheckedCommunicatorOptions & { readonly table: AlgorithmTable },
): Promise<CollectiveEngine> {
  const { table, numSms, directBytes, copyEngines, ...rest } = options;
  if (device.kind === 'cuda') {
    if (group.topology.hosts.length > 1) return createHostsCollectives(group, device, options);
    return createCudaCollectives(group, device, { ...rest, numSms, directBytes, copyEngines });
  }
  return createCpuCollectives(group, device, { ...rest, directBytes, table });
}
