// The device that conformance programs run on, by WEFTLINE_TEST_DEVICE: "cpu" (default) or "cuda".
import { CpuDevice, CudaDevice, cudaDeviceCount, type Device, openDevice } from 'weftline';
import type { EPAll2AllLayer } from 'weftline/ep';
import type { RankGroup, World } from 'weftline/world';

/** What EPAll2AllLayer and EpBuffer both run on. */
export type EpDevice = Parameters<typeof EPAll2AllLayer.create>[1];

export async function openTestDevice(group: RankGroup): Promise<EpDevice> {
  return openDevice(testKind(), group);
}

/** The same, not collective: for ranks that are started again while the others work. */
export async function openOwnDevice({ rank }: RankGroup): Promise<EpDevice> {
  return testKind() === 'cpu' ? CpuDevice.create() : CudaDevice.create({ ordinal: rank % cudaDeviceCount() });
}

function testKind(): 'cpu' | 'cuda' {
  const kind = process.env['WEFTLINE_TEST_DEVICE'] ?? 'cpu';
  if (kind !== 'cpu' && kind !== 'cuda') throw new Error(`WEFTLINE_TEST_DEVICE is ${kind}, not cpu or cuda`);
  return kind;
}

/**
 * The ranks that conformance programs work with, by WEFTLINE_TEST_GROUP: "each" (default), with WEFTLINE_HOSTS a group
 * for each host, in the reverse order of world ranks, all at work at once; "all", the world, over all hosts; "mixed", the
 * same ranks in the order of their places on their hosts, so that neighbours are on different hosts; "alternate", two groups
 * over all hosts, as those of expert parallelism inside of data parallelism.
 */
export async function testGroup(world: World): Promise<RankGroup> {
  const { hosts, hostIndex, scaleUpIndex } = world.topology;
  const shape = process.env['WEFTLINE_TEST_GROUP'] ?? 'each';
  switch (shape) {
    case 'all':
      return world;
    case 'mixed':
      return world.split({ color: 0, key: -(scaleUpIndex * hosts.length + hostIndex) });
    case 'alternate':
      return world.split({ color: scaleUpIndex % 2 });
    case 'each':
      return hosts.length === 1 ? world : world.split({ color: hostIndex, key: -world.rank });
    default:
      throw new Error(`WEFTLINE_TEST_GROUP is ${shape}, not each, all, mixed or alternate`);
  }
}

/** Bytes that were taken and not given back; undefined where the device keeps no count. */
export function bytesInUse(device: Device): number | undefined {
  return device instanceof CpuDevice ? device.space.used : undefined;
}
