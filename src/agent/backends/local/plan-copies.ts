// Sorts the parts of a transfer by how their memory is reached, and makes the copies of each sort.
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { BackendRegion, BackendRemoteRegion, PlannedTransfer, TransferOperation } from '../../backend.ts';
import { CopyList } from './copy-list.ts';
import { type CopyPlan, HostCopies, JoinedCopies } from './copy-plan.ts';
import { CudaCopies } from './cuda-copies.ts';
import type { DeviceWork } from './device-work.ts';
import type { LocalRegion } from './local-region.ts';
import type { LocalRemoteRegion, RegionReach } from './remote-region.ts';

export type LocalPlan = PlannedTransfer<BackendRegion, BackendRemoteRegion>;

export interface LocalTransferParts {
  readonly plan: CopyPlan;
  /** The plan, if the thread that copies can carry it out. */
  readonly host: HostCopies | undefined;
  /** Without repetition. */
  readonly locals: readonly LocalRegion[];
  readonly remotes: readonly LocalRemoteRegion[];
  readonly dispose: () => void;
}

/** What a link knows of the peer's memory. */
export interface LinkedMemory {
  readonly peerName: string;
  readonly pid: number;
  mapAllocation(reach: Extract<RegionReach, { kind: 'cuda' }>, device: CudaDevice): number;
  stream(device: CudaDevice): CudaStream;
  readonly deviceWork: DeviceWork;
}

/** Fails with WL_UNSUPPORTED for pairs of memory that nothing copies. */
export function planCopies(link: LinkedMemory, operation: TransferOperation, plan: LocalPlan): LocalTransferParts {
  const isRead = operation === 'read';
  const locals = plan.locals as readonly LocalRegion[];
  const remotes = plan.remotes as readonly LocalRemoteRegion[];
  const { mapped, process, onDevice } = sortParts(link, { locals, remotes, parts: plan.parts });
  const plans: CopyPlan[] = [];
  const cuda = [...onDevice].map(
    ([device, list]) => new CudaCopies(list, { device, stream: link.stream(device), work: link.deviceWork, isRead }),
  );
  plans.push(...cuda);
  const host =
    mapped.count + process.count === 0
      ? undefined
      : new HostCopies({ mapped, process, pid: link.pid, isRead, peer: link.peerName });
  if (host !== undefined) plans.push(host);
  return {
    host: cuda.length === 0 ? host : undefined,
    plan: plans.length === 1 ? (plans[0] as CopyPlan) : new JoinedCopies(plans),
    locals,
    remotes,
    dispose: () => {
      for (const copies of cuda) copies[Symbol.dispose]();
    },
  };
}

interface SortedParts {
  readonly mapped: CopyList;
  readonly process: CopyList;
  readonly onDevice: ReadonlyMap<CudaDevice, CopyList>;
}

/** How the parts between one pair of regions are copied, and where the far region begins as seen by that copy. */
interface Way {
  readonly list: CopyList;
  readonly begin: number;
}

function sortParts(
  link: LinkedMemory,
  { locals, remotes, parts }: PlannedTransfer<LocalRegion, LocalRemoteRegion>,
): SortedParts {
  const { count } = parts;
  const mapped = new CopyList(count);
  const process = new CopyList(count);
  const onDevice = new Map<CudaDevice, CopyList>();
  const wayOf = (device: CudaDevice | undefined, { reach }: LocalRemoteRegion): Way => {
    if (device === undefined && reach.kind !== 'cuda')
      return { list: reach.kind === 'mapped' ? mapped : process, begin: reach.address };
    const at = remoteOnDevice(link, reach, device);
    const list = onDevice.get(at.device) ?? new CopyList(count);
    onDevice.set(at.device, list);
    return { list, begin: at.address };
  };
  /** By device of this side, then by index of the remote region. */
  const ways = new Map<CudaDevice | undefined, (Way | undefined)[]>();
  for (const { device } of locals) if (!ways.has(device)) ways.set(device, []);
  const waysOfLocal = locals.map(({ device }) => ways.get(device) as (Way | undefined)[]);
  for (let at = 0; at < count; at++) {
    const { device, address } = locals[parts.local[at]!] as LocalRegion;
    const remote = parts.remote[at]!;
    const known = waysOfLocal[parts.local[at]!] as (Way | undefined)[];
    const { list, begin } = (known[remote] ??= wayOf(device, remotes[remote] as LocalRemoteRegion));
    list.add(address + parts.localOffset[at]!, begin + parts.remoteOffset[at]!, parts.bytes[at]!);
  }
  return { mapped, process, onDevice };
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
