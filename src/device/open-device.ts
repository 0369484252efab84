// Opens the device that a rank was told to use, one GPU for each rank of a host as far as they go.
import { CpuDevice } from './cpu/cpu-device.ts';
import { cudaDeviceCount } from './cuda/cuda-context.ts';
import { CudaDevice } from './cuda/cuda-device.ts';
import type { DeviceKind } from './device.ts';

export interface OpenDeviceOptions {
  /** Place of this rank among those of its host, from 0. */
  readonly localRank: number;
}

/**
 * `auto` is `cuda` where this process finds a driver and a GPU, else `cpu`. Rank l takes GPU l of those that the
 * process sees; when there are more ranks than GPUs, they start again at GPU 0. Fails with WL_UNSUPPORTED or WL_CUDA
 * where `cuda` cannot be had, else as the devices' own create().
 */
export function openDevice(
  kind: DeviceKind | 'auto',
  { localRank }: OpenDeviceOptions,
): Promise<CpuDevice | CudaDevice> {
  if (kind === 'cpu') return CpuDevice.create();
  const gpus = cudaDeviceCount();
  if (kind === 'auto' && gpus === 0) return CpuDevice.create();
  // Without a GPU, opening the first one tells what is missing.
  return CudaDevice.create({ ordinal: gpus === 0 ? 0 : localRank % gpus });
}
