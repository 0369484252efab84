// Sorts the parts of a transfer by how their memory is reached, and makes the copies of each sort.
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { TransferOperation, TransferPart } from '../../backend.ts';
import { type CopyPart, type CopyPlan, HostCopies, JoinedCopies } from './copy-plan.ts';
import { CudaCopies } from './cuda-copies.ts';
import type { DeviceWork } from './device-work.ts';
import type { LocalRegion } from './local-region.ts';
import type { LocalTransferParts } from './local-transfer.ts';
import type { LocalRemoteRegion, RegionReach } from './remote-region.ts';

/** What a link knows of the peer's memory. */
export interface LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number;
  stream(device: CudaDevice): CudaStream;
  readonly deviceWork: DeviceWork;
}

/** Fails with WL_UNSUPPORTED for pairs of memory that nothing copies. */
export function planCopies(
  link: LinkedMemory,
  operation: TransferOperation,
  parts: readonly TransferPart[],
): LocalTransferParts {
  const isRead = operation === 'read';
  const mapped: CopyPart[] = [];
  const process: CopyPart[] = [];
  const onDevice = new Map<CudaDevice, CopyPart[]>();
  for (const part of parts) {
    const { device, address } = part.local as LocalRegion;
    const { reach } = part.remote as LocalRemoteRegion;
    const local = address + part.localOffset;
    const { bytes, remoteOffset } = part;
    if (device !== undefined || reach.kind === 'cuda') {
      const at = remoteOnDevice(link, reach, device);
      const list = onDevice.get(at.device) ?? [];
      onDevice.set(at.device, [...list, { local, remote: at.address + remoteOffset, bytes }]);
    } else {
      (reach.kind === 'mapped' ? mapped : process).push({ local, remote: reach.address + remoteOffset, bytes });
    }
  }
  const plans: CopyPlan[] = [];
  const cuda = [...onDevice].map(
    ([device, list]) => new CudaCopies(list, { device, stream: link.stream(device), work: link.deviceWork, isRead }),
  );
  plans.push(...cuda);
  const host =
    mapped.length + process.length === 0
      ? undefined
      : new HostCopies({ mapped, process, pid: link.pid, isRead, peer: link.peerName });
  if (host !== undefined) plans.push(host);
  return {
    host: cuda.length === 0 ? host : undefined,
    plan: plans.length === 1 ? (plans[0] as CopyPlan) : new JoinedCopies(plans),
    locals: [...new Set(parts.map(({ local }) => local as LocalRegion))],
    remotes: [...new Set(parts.map(({ remote }) => remote as LocalRemoteRegion))],
    dispose: () => {
      for (const copies of cuda) copies[Symbol.dispose]();
    },
  };
}

function remoteOnDevice(
  link: LinkedMemory,
  reach: RegionReach,
  device: CudaDevice | undefined,
): { readonly device: CudaDevice; readonly address: number } {
  if (device === undefined) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `Cannot move host memory of this side to or from GPU memory of ${link.peerName}: give GPU memory of this side`,
    );
  }
  if (reach.kind === 'cuda') return { device, address: link.mapAllocation(reach, device) };
  if (reach.kind === 'mapped') return { device, address: reach.address };
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `GPU memory can be moved to and from memory that ${link.peerName} took from agent.allocate(), not from its other host memory`,
  );
}
