// Decides how an RDMA device reaches memory of a GPU, and so where the network side of a GPU lies, and says why.
import type { Out } from '../library.ts';
import type { CudaDriver } from '../cuda-driver.ts';
import type { FileProbe } from '../file-probe.ts';
import type { Settings } from '../../settings/settings.ts';

/**
 * - `dmabuf`: the CUDA driver exports the memory as a file descriptor, which the RDMA device registers.
 * - `peermem`: the RDMA device registers the addresses of the GPU, which the kernel module nvidia-peermem translates.
 * - `pinned`: the RDMA device does not reach the memory; what crosses the network lies in pinned memory of the host.
 */
type GpuMemoryWay = Exclude<Settings['rdmaGpuMemory'], 'auto'>;

/** What the CUDA driver says of one GPU. */
interface GpuRdmaFacts {
  /** Other devices may read and write its memory over PCI. */
  readonly isReachable: boolean;
  readonly exportsDmabuf: boolean;
  /** Its kernels see what other devices write in the order of the writes. */
  readonly ordersWrites: boolean;
}

export interface GpuMemoryFacts {
  readonly gpu: GpuRdmaFacts;
  /** Why the RDMA device registers no dmabuf; undefined if it does. */
  readonly dmabufProblem: string | undefined;
  /** The kernel module that translates addresses of GPUs for RDMA devices; undefined if there is none. */
  readonly peermem: string | undefined;
  /** Why the two are too far apart, as the end of a sentence; undefined if they are not. */
  readonly distanceProblem: string | undefined;
}

export interface GpuMemoryChoice {
  readonly way: GpuMemoryWay;
  /** Why, as the end of a sentence. */
  readonly reason: string;
  /**
   * What makes writes of the device visible to the GPU before anybody is told of them: a `read` behind them by the device,
   * or nothing, where the GPU shows them in order and where they go to memory of the host.
   */
  readonly flush: 'read' | 'none';
}

/** The first way that is there; one that the setting names is taken as it is. */
export function chooseGpuMemory(facts: GpuMemoryFacts, wanted: Settings['rdmaGpuMemory']): GpuMemoryChoice {
  const { gpu, dmabufProblem, peermem, distanceProblem } = facts;
  const flush = gpu.ordersWrites ? 'none' : 'read';
  if (wanted !== 'auto') {
    const reason = 'the setting rdmaGpuMemory names it';
    return { way: wanted, reason, flush: wanted === 'pinned' ? 'none' : flush };
  }
  if (!gpu.isReachable) return pinned('the CUDA driver lets no other device reach memory of this GPU');
  if (distanceProblem !== undefined) return pinned(distanceProblem);
  const noDmabuf = gpu.exportsDmabuf
    ? dmabufProblem
    : 'the CUDA driver exports no memory of this GPU as a dmabuf, for which it needs the open kernel modules and Linux 5.12';
  if (noDmabuf === undefined) {
    return { way: 'dmabuf', reason: 'the CUDA driver exports dmabufs, and the RDMA device registers them', flush };
  }
  if (peermem !== undefined) return { way: 'peermem', reason: `${noDmabuf}; ${peermem} is loaded`, flush };
  return pinned(`${noDmabuf}; and nvidia-peermem is not loaded ("modprobe nvidia-peermem")`);
}

/** Memory of a GPU that no RDMA device reaches. */
function pinned(reason: string): GpuMemoryChoice {
  return { way: 'pinned', reason, flush: 'none' };
}

/** Modules by where the kernel shows them: NVIDIA's driver has brought one since version 470, older ones came apart from it. */
const peermemModules = [
  ['nvidia-peermem', '/sys/module/nvidia_peermem'],
  ['nv_peer_mem', '/sys/kernel/mm/memory_peers/nv_mem'],
  ['nv_peer_mem', '/sys/kernel/mm/memory_peers/nv_mem_nc'],
] as const;

export function peermemModule(files: FileProbe): string | undefined {
  return peermemModules.find(([, place]) => files.exists(place))?.[0];
}

/** CUdevice_attribute. */
const GPU_DIRECT_RDMA_SUPPORTED = 116;
const GPU_DIRECT_RDMA_WRITES_ORDERING = 118;
const DMA_BUF_SUPPORTED = 124;
/** CUGPUDirectRDMAWritesOrdering: the GPU itself sees them in order; larger values are promises to other GPUs as well. */
const ORDERED_FOR_OWNER = 100;

/** `device`: CUdevice. What an old driver does not know, it does not have. */
export function gpuRdmaFacts(driver: Pick<CudaDriver, 'cuDeviceGetAttribute'>, device: number): GpuRdmaFacts {
  const read = (attribute: number): number => {
    const value: Out = [0];
    return driver.cuDeviceGetAttribute(value, attribute, device) === 0 ? value[0] : 0;
  };
  return {
    isReachable: read(GPU_DIRECT_RDMA_SUPPORTED) === 1,
    exportsDmabuf: read(DMA_BUF_SUPPORTED) === 1,
    ordersWrites: read(GPU_DIRECT_RDMA_WRITES_ORDERING) >= ORDERED_FOR_OWNER,
  };
}

/** Its PCI address: 0000:01:00.0. `device`: CUdevice. */
export function gpuAddress(driver: Pick<CudaDriver, 'cuDeviceGetPCIBusId'>, device: number): string {
  const id = new Uint8Array(32);
  driver.cuDeviceGetPCIBusId(id, id.length, device);
  const address = Buffer.from(id.subarray(0, id.indexOf(0))).toString('latin1');
  return address.toLowerCase();
}

/** A GPU that the CUDA driver shows to this process. */
export interface ReachedGpu {
  /** PCI address. */
  readonly gpu: string;
  readonly facts: GpuRdmaFacts;
}

/** Empty where the driver shows none. Makes no context. */
export function listGpuRdmaFacts(driver: CudaDriver): readonly ReachedGpu[] {
  const count: Out = [0];
  if (driver.cuInit(0) !== 0 || driver.cuDeviceGetCount(count) !== 0) return [];
  return Array.from({ length: count[0] }, (_, ordinal) => {
    const device: Out = [0];
    driver.cuDeviceGet(device, ordinal);
    return { gpu: gpuAddress(driver, device[0]), facts: gpuRdmaFacts(driver, device[0]) };
  });
}
