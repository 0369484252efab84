// How the RDMA port of this host reaches memory of a GPU, for the backend that drives it and for those who place memory before
// there is one.
import { asWeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { activeRdmaPorts, localFiles } from '../../native/file-probe.ts';
import { ProtectionDomain, VerbsContext } from '../../native/verbs/context.ts';
import {
  chooseGpuMemory,
  gpuAddress,
  type GpuMemoryChoice,
  gpuRdmaFacts,
  peermemModule,
} from '../../native/verbs/gpu-memory.ts';
import { whyNoDmabuf } from '../../native/verbs/memory-region.ts';
import { pciDeviceOf } from '../../rails/nearest-device.ts';
import { type RdmaRail, whyTooFar } from '../../rails/rdma-choice.ts';
import type { Settings } from '../../settings/settings.ts';
import { choosePort } from './rdma-device.ts';

interface OpenPort {
  readonly domain: ProtectionDomain;
  readonly rail: RdmaRail;
}

export function gpuMemoryBy({ domain, rail }: OpenPort, { context }: CudaDevice, settings: Settings): GpuMemoryChoice {
  const { driver, device } = context;
  const files = localFiles();
  const place = pciDeviceOf(files, `/sys/bus/pci/devices/${gpuAddress(driver, device)}`);
  const facts = {
    gpu: gpuRdmaFacts(driver, device),
    dmabufProblem: whyNoDmabuf(domain),
    peermem: peermemModule(files),
    distanceProblem: whyTooFar(rail, place),
  };
  return chooseGpuMemory(facts, settings.rdmaGpuMemory);
}

/** How an agent for memory of one GPU would move that between hosts. */
export interface GpuReach {
  readonly memory: GpuMemoryChoice;
  /** The kind of network of the RDMA port; undefined without a port. */
  readonly linkLayer: string | undefined;
  /** The setting by which an agent takes that port. */
  readonly rdmaDevices?: string;
  /** What takes the memory as it is; in tests also what stages it. */
  readonly backends: readonly ('verbs' | 'multipath')[];
}

/** Opens the device of the port that is best for the GPU, for a moment. Where there is none, the reason says why. */
export function gpuReach(gpu: CudaDevice, settings: Settings): GpuReach {
  if (activeRdmaPorts(localFiles()).length === 0) return noReach('this host has no RDMA device with an active port');
  try {
    const { driver, device } = gpu.context;
    const { rail } = choosePort(settings, gpuAddress(driver, device));
    const { name, port } = rail;
    using context = VerbsContext.open(name);
    using domain = new ProtectionDomain(context);
    const { linkLayer } = context.queryPort(port);
    const memory = gpuMemoryBy({ domain, rail }, gpu, settings);
    return { memory, linkLayer, rdmaDevices: `=${name}:${port}`, backends: ['verbs'] };
  } catch (error) {
    return noReach(asWeftlineError(error).message);
  }
}

function noReach(reason: string): GpuReach {
  return { memory: { way: 'pinned', reason, flush: 'none' }, linkLayer: undefined, backends: [] };
}
