// Chooses what moves the fragments of a launcher, by its device.
import { invalidArgument } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { CpuFragments } from './cpu/cpu-fragments.ts';
import { LaunchedFragments } from './cuda/launched-fragments.ts';
import { PersistentFragments } from './cuda/persistent-fragments.ts';
import { checkConfig, type CheckedConfig, type FragmentEngine, type LauncherConfig } from './launcher-config.ts';
import type { Direction } from './ring-writer.ts';

/** A configuration for GPUs may be given to the CPU device. */
const NO_LIMIT = 65_535;

export async function createEngine(
  device: CpuDevice | CudaDevice,
  config: LauncherConfig,
  direction: Direction,
): Promise<{ readonly engine: FragmentEngine; readonly checked: CheckedConfig }> {
  const kind: unknown = typeof device === 'object' && device !== null ? device.kind : undefined;
  if (kind !== 'cpu' && kind !== 'cuda') throw invalidArgument('device', device, 'a CpuDevice or a CudaDevice');
  const multiprocessors = device.kind === 'cuda' ? device.properties.multiprocessors : NO_LIMIT;
  const checked = checkConfig(config, multiprocessors);
  if (device.kind === 'cpu') return { engine: new CpuFragments(device, checked, direction), checked };
  const Fragments = checked.persistent ? PersistentFragments : LaunchedFragments;
  return { engine: await Fragments.create(device, checked, direction), checked };
}
