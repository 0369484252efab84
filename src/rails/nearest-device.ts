// Finds which of several devices, network interfaces or RDMA devices, is nearest to each GPU on the PCI bus.
import type { FileProbe } from '../native/file-probe.ts';

interface Nearest<T> {
  /** PCI address of the GPU. */
  readonly gpu: string;
  /** Missing if none has a PCI device. */
  readonly nearest?: T;
  readonly distance?: PciDistance;
}

/** The NVIDIA GPUs of this host. */
export function gpuDevices(files: FileProbe): readonly PciDevice[] {
  return files.list('/proc/driver/nvidia/gpus').flatMap((address) => {
    const device = pciDeviceOf(files, `/sys/bus/pci/devices/${address}`);
    return device === undefined ? [] : [device];
  });
}

/** Among those that are equally near, a GPU takes the one that the fewest GPUs before it took. */
export function nearestDevices<T extends { readonly device?: PciDevice }>(
  gpus: readonly PciDevice[],
  things: readonly T[],
): readonly Nearest<T>[] {
  const taken = new Map<T, number>();
  return gpus.map((gpu) => {
    const choices = things.flatMap((thing) =>
      thing.device === undefined ? [] : [{ thing, distance: pciDistance(gpu, thing.device) }],
    );
    const [best] = choices.toSorted(
      (a, b) => compareDistances(a.distance, b.distance) || (taken.get(a.thing) ?? 0) - (taken.get(b.thing) ?? 0),
    );
    if (best === undefined) return { gpu: gpu.address };
    taken.set(best.thing, (taken.get(best.thing) ?? 0) + 1);
    return { gpu: gpu.address, nearest: best.thing, distance: best.distance };
  });
}

// The place of a PCI device in its host, from /sys, and how far two of them are from each other.

export interface PciDevice {
  /** 0000:01:00.0. */
  readonly address: string;
  /** The root (pci0000:00), the bridges and the device itself, in order. */
  readonly path: readonly string[];
  /** Undefined where the firmware does not say. */
  readonly numaNode: number | undefined;
}

/** Relations from near to far. */
const pciRelations = [
  'same PCI device',
  'same PCI switch',
  'same PCI root',
  'same NUMA node',
  'other NUMA node',
] as const;

export interface PciDistance {
  readonly relation: (typeof pciRelations)[number];
  /** Steps from one device up to what both have in common, and down to the other. */
  readonly hops: number;
}

const deviceAddress = /^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$/;
const rootName = /^pci[0-9a-f]{4,}:[0-9a-f]{2}$/;

/** The PCI device behind a folder of /sys, such as /sys/class/net/eth0/device; undefined if there is none. */
export function pciDeviceOf(files: FileProbe, folder: string): PciDevice | undefined {
  const place = files.realPath(folder)?.split('/') ?? [];
  const path = place.filter((part) => rootName.test(part) || deviceAddress.test(part));
  const address = path.findLast((part) => deviceAddress.test(part));
  if (address === undefined) return undefined;
  const device = place.slice(0, place.lastIndexOf(address) + 1).join('/');
  const node = Number(files.readText(`${device}/numa_node`) ?? Number.NaN);
  return { address, path, numaNode: node >= 0 ? node : undefined };
}

export function pciDistance(a: PciDevice, b: PciDevice): PciDistance {
  let common = 0;
  while (common < a.path.length && a.path[common] === b.path[common]) common += 1;
  const hops = a.path.length + b.path.length - 2 * common;
  return { relation: relationOf(a, b, common), hops };
}

/** Negative if `a` is nearer than `b`. */
export function compareDistances(a: PciDistance, b: PciDistance): number {
  return pciRelations.indexOf(a.relation) - pciRelations.indexOf(b.relation) || a.hops - b.hops;
}

function relationOf(a: PciDevice, b: PciDevice, common: number): PciDistance['relation'] {
  if (a.address === b.address) return 'same PCI device';
  // What they have in common begins with the root; a bridge behind it leads to both.
  if (common > 1) return 'same PCI switch';
  if (common === 1) return 'same PCI root';
  const areOnOneNode = a.numaNode !== undefined && a.numaNode === b.numaNode;
  return areOnOneNode ? 'same NUMA node' : 'other NUMA node';
}
