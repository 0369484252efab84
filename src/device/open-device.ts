// Opens the device that the ranks of a job chose together; the one place that knows all kinds.
import { log } from '../core/log.ts';
import { CpuDevice } from './cpu/cpu-device.ts';
import { CudaDevice } from './cuda/cuda-device.ts';
import { chooseDevice, type DeviceChoice, type DeviceGroup } from './device-choice.ts';
import type { Settings } from '../settings/settings.ts';

/**
 * Collective: chooses a kind for all ranks (see chooseDevice) and opens this rank's device with the group's settings. A
 * world is a group. Fails as chooseDevice() and the devices' own create() do.
 * @param request What the setting `device` allows.
 * @param group The ranks that take part.
 */
export async function openDevice(request: Settings['device'], group: DeviceGroup): Promise<CpuDevice | CudaDevice> {
  return openChosenDevice(await chooseDevice(request, group), group.settings);
}

/**
 * Opens what chooseDevice() chose; local. Fails with what the device's own create() does.
 * @param choice From chooseDevice().
 * @param settings The group's.
 */
export function openChosenDevice(choice: DeviceChoice, settings: Settings): Promise<CpuDevice | CudaDevice> {
  log('device', 'info', `${choice.kind === 'cpu' ? 'the CPU' : `GPU ${choice.ordinal}`}: ${choice.reason}`);
  if (choice.kind === 'cpu') return CpuDevice.create(settings);
  return CudaDevice.create({ ...settings, ordinal: choice.ordinal });
}
