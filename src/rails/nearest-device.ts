// Which of several devices, network interfaces or RDMA devices, is nearest to each GPU on the PCI bus.
import type { FileProbe } from '../native/file-probe.ts';
import { compareDistances, type PciDevice, pciDeviceOf, type PciDistance, pciDistance } from './pci-device.ts';

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
