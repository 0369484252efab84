// The device that conformance programs run on, by WEFTLINE_TEST_DEVICE: "cpu" (default) or "cuda".
import { CpuDevice, type Device, openDevice } from 'weftline';
import type { EPAll2AllLayer } from 'weftline/ep';
import type { RankGroup, World } from 'weftline/world';

/** What EPAll2AllLayer and EpBuffer both run on. */
export type EpDevice = Parameters<typeof EPAll2AllLayer.create>[1];

export async function openTestDevice(group: RankGroup): Promise<EpDevice> {
  const kind = process.env['WEFTLINE_TEST_DEVICE'] ?? 'cpu';
  if (kind !== 'cpu' && kind !== 'cuda') throw new Error(`WEFTLINE_TEST_DEVICE is ${kind}, not cpu or cuda`);
  return openDevice(kind, group);
}

/** The ranks that conformance programs work with. With WEFTLINE_HOSTS each host has a group, in the reverse order of world ranks; all groups work at once. */
export async function groupOfHost(world: World): Promise<RankGroup> {
  const { hosts, hostIndex } = world.topology;
  return hosts.length === 1 ? world : world.split({ color: hostIndex, key: -world.rank });
}

/** Bytes that were taken and not given back; undefined where the device keeps no count. */
export function bytesInUse(device: Device): number | undefined {
  return device instanceof CpuDevice ? device.space.used : undefined;
}
