// The GPU that an endpoint is bound to.
import { invalidArgument } from '../../core/errors.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Registrable } from '../registration.ts';

/**
 * Undefined if none is asked for, or the machine has none: memory is then of the host anyway. Fails with
 * WL_INVALID_ARGUMENT for what is no index, or lies beyond the GPUs that there are.
 */
export async function openGpu(
  index: number | undefined,
  settings: Partial<Settings> | undefined,
): Promise<CudaDevice | undefined> {
  if (index === undefined) return undefined;
  const count = cudaDeviceCount();
  if (!Number.isInteger(index) || index < 0 || (count > 0 && index >= count)) {
    const limit = count > 0 ? ` below ${count}, the number of GPUs` : '';
    throw invalidArgument('localGpuIndex', index, `a whole number from 0${limit}`);
  }
  return count === 0 ? undefined : CudaDevice.create({ ...settings, ordinal: index });
}

/** Fails with WL_INVALID_ARGUMENT for memory of another GPU. */
export function checkGpu(memory: Registrable, index: number): void {
  if (!('device' in memory) || !(memory.device instanceof CudaDevice)) return;
  const { ordinal } = memory.device.context;
  if (ordinal !== index)
    throw invalidArgument('memory', `memory of GPU ${ordinal}`, `memory of GPU ${index}, or the host`);
}
