// Moves fragments from a bounce buffer to their places.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { createEngine } from './create-engine.ts';
import { FragmentLauncher } from './fragment-launcher.ts';
import type { LauncherConfig } from './launcher-config.ts';

/**
 * Unpacks: a chunk lies in a bounce buffer as fragments, and each goes to its own place in the destination. One launch moves
 * thousands of them. Make it once; a launch allocates nothing.
 */
export class UnpackLauncher extends FragmentLauncher {
  /**
   * Takes memory for its ring, and on GPUs compiles its kernels unless they are in a cache. Fails with
   * WL_INVALID_ARGUMENT, WL_MEMORY, WL_COMPILE, WL_UNSUPPORTED or WL_CUDA.
   * @param device Whose memory is moved.
   * @param config What differs from the defaults.
   */
  static async create(device: CpuDevice | CudaDevice, config: LauncherConfig = {}): Promise<UnpackLauncher> {
    const { engine, checked } = await createEngine(device, config, 'unpack');
    return new UnpackLauncher(engine, checked, 'unpack');
  }
}
