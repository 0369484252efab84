// One DeviceHalf per device of a DeviceHost.
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CpuHalf, type CpuHalfOptions } from './cpu-half.ts';
import { CudaHalf } from './cuda-half.ts';
import type { DeviceHostOptions } from './device-host-options.ts';
import type { DeviceHalf } from './device-half.ts';

const kindsOfDevice: ReadonlySet<unknown> = new Set(['cpu', 'cuda']);

/** Fails with WL_INVALID_ARGUMENT unless there is one device, or several GPUs. */
export function checkDevices({ device, devices }: DeviceHostOptions): readonly (CpuDevice | CudaDevice)[] {
  if ((device === undefined) === (devices === undefined)) {
    throw invalidArgument('device', device, 'one device, or several by the option devices');
  }
  if (device !== undefined) {
    // Callers in plain JavaScript may pass anything.
    if (!kindsOfDevice.has(device?.kind)) throw invalidArgument('device', device, 'a CpuDevice or a CudaDevice');
    return [device];
  }
  const list = devices ?? [];
  if (!Array.isArray(list) || list.length === 0) throw invalidArgument('devices', list, 'at least one GPU');
  const kinds = list.map((one: Partial<CudaDevice> | null): unknown => one?.kind);
  if (kinds.some((kind) => kind !== 'cuda')) throw invalidArgument('devices', kinds, 'GPUs only');
  const ordinals = list.map(({ context }) => context.ordinal);
  if (new Set(ordinals).size < list.length) throw invalidArgument('devices', ordinals, 'each GPU once');
  return list;
}

/**
 * Whoever closes a GPU has `end` called and waited for first: a thread that serves queues would else read memory that is gone.
 * Returns what is called once that has ended by itself.
 */
export function endBeforeDevices(devices: readonly (CpuDevice | CudaDevice)[], end: () => Promise<void>): () => void {
  const gpus = devices.filter((device) => device.kind === 'cuda');
  for (const { context } of gpus) context.threads.add(end);
  return () => {
    for (const { context } of gpus) context.threads.delete(end);
  };
}

/** By the GPU's ordinal; 0 on the CPU. */
export async function openHalves(
  devices: readonly (CpuDevice | CudaDevice)[],
  options: CpuHalfOptions,
): Promise<ReadonlyMap<number, DeviceHalf>> {
  const halves = new Map<number, DeviceHalf>();
  try {
    for (const device of devices) {
      const half = device.kind === 'cpu' ? new CpuHalf(options) : await CudaHalf.create({ ...options, device });
      halves.set(half.deviceId, half);
    }
    return halves;
  } catch (error) {
    for (const half of halves.values()) half[Symbol.dispose]();
    throw error;
  }
}
