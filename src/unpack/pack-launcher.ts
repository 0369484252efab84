// The inverse of an unpack: gathers fragments into one buffer.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { createEngine } from './create-engine.ts';
import { FragmentLauncher } from './fragment-launcher.ts';
import type { LauncherConfig } from './launcher-config.ts';

/**
 * Packs: reads each fragment at its destination offset and writes it at its source offset in the bounce buffer. The block
 * that packed a chunk on one side unpacks it on another.
 */
export class PackLauncher extends FragmentLauncher {
  /**
   * As UnpackLauncher.create().
   * @param device Whose memory is moved.
   * @param config What differs from the defaults.
   */
  static async create(device: CpuDevice | CudaDevice, config: LauncherConfig = {}): Promise<PackLauncher> {
    const { engine, checked } = await createEngine(device, config, 'pack');
    return new PackLauncher(engine, checked, 'pack');
  }
}
