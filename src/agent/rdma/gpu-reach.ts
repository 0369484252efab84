// How the RDMA port of this host reaches memory of a GPU, for the backend that drives it and for those who place memory before
// there is one.
import { asWeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { activeRdmaPorts, localFiles } from '../../native/file-probe.ts';
import { ProtectionDomain, VerbsContext } from '../../native/verbs/context.ts';
import { chooseGpuMemory, type GpuMemoryChoice, gpuRdmaFacts, peermemModule } from '../../native/verbs/gpu-memory.ts';
import { whyNoDmabuf } from '../../native/verbs/memory-region.ts';
import type { Settings } from '../../settings/settings.ts';
import { choosePort } from './rdma-device.ts';

export function gpuMemoryBy(
  domain: ProtectionDomain,
  { context: { driver, device } }: CudaDevice,
  settings: Settings,
): GpuMemoryChoice {
  const dmabufProblem = whyNoDmabuf(domain);
  const facts = { gpu: gpuRdmaFacts(driver, device), dmabufProblem, peermem: peermemModule(localFiles()) };
  return chooseGpuMemory(facts, settings.rdmaGpuMemory);
}

/** How agents of this process would move memory of a GPU between hosts. */
export interface GpuReach {
  readonly memory: GpuMemoryChoice;
  /** The kind of network of the RDMA port; undefined without a port. */
  readonly linkLayer: string | undefined;
  /** What takes the memory as it is; in tests also what stages it. */
  readonly backends: readonly ('verbs' | 'multipath')[];
}

/** Opens the port's device for a moment. Where there is none, the reason says why. */
export function gpuReach(gpu: CudaDevice, settings: Settings): GpuReach {
  if (activeRdmaPorts(localFiles()).length === 0) return noReach('this host has no RDMA device with an active port');
  try {
    const { rail } = choosePort(settings);
    using context = VerbsContext.open(rail.name);
    using domain = new ProtectionDomain(context);
    const { linkLayer } = context.queryPort(rail.port);
    return { memory: gpuMemoryBy(domain, gpu, settings), linkLayer, backends: ['verbs'] };
  } catch (error) {
    return noReach(asWeftlineError(error).message);
  }
}

function noReach(reason: string): GpuReach {
  return { memory: { way: 'pinned', reason, flush: 'none' }, linkLayer: undefined, backends: [] };
}
