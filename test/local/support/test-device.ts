// The device that conformance programs run on, by WEFTLINE_TEST_DEVICE: "cpu" (default) or "cuda".
import { CpuDevice, type Device, openDevice } from 'weftline';
import type { EPAll2AllLayer } from 'weftline/ep';
import type { World } from 'weftline/world';

/** What EPAll2AllLayer and EpBuffer both run on. */
export type EpDevice = Parameters<typeof EPAll2AllLayer.create>[1];

export async function openTestDevice(world: World): Promise<EpDevice> {
  const kind = process.env['WEFTLINE_TEST_DEVICE'] ?? 'cpu';
  if (kind !== 'cpu' && kind !== 'cuda') throw new Error(`WEFTLINE_TEST_DEVICE is ${kind}, not cpu or cuda`);
  return openDevice(kind, world);
}

/** Bytes that were taken and not given back; undefined where the device keeps no count. */
export function bytesInUse(device: Device): number | undefined {
  return device instanceof CpuDevice ? device.space.used : undefined;
}
