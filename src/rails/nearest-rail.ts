// What the rails of this host are made of, and which of them is nearest to each GPU.
import { type FileProbe, localFiles } from '../native/file-probe.ts';
import { type HostInterface, hostInterfaces, listRails, type Rail } from './rail-list.ts';
import { gpuDevices, nearestDevices, type PciDevice, pciDeviceOf, type PciDistance } from './nearest-device.ts';

interface RailHardware extends Rail {
  readonly gigabitsPerSecond?: number;
  readonly mtuBytes?: number;
  /** Missing for interfaces without hardware, such as veth. */
  readonly device?: PciDevice;
}

interface GpuRail {
  /** PCI address of the GPU. */
  readonly gpu: string;
  /** Name of the nearest rail; missing if no rail has a PCI device. */
  readonly rail?: string;
  readonly distance?: PciDistance;
}

export interface RailPlan {
  readonly rails: readonly RailHardware[];
  readonly gpus: readonly GpuRail[];
}

/**
 * The rails that the setting names, or if it is empty all interfaces that could be rails, and the nearest one of each GPU.
 * Fails with WL_CONFIG for a wrong list.
 */
export function planRails(
  list: string,
  files: FileProbe = localFiles(),
  interfaces: readonly HostInterface[] = hostInterfaces(),
): RailPlan {
  const named = listRails(list, interfaces);
  const rails = (named.length > 0 ? named : usableRails(interfaces)).map((rail) => hardwareOf(rail, files));
  const gpus = nearestDevices(gpuDevices(files), rails).map(({ gpu, nearest, distance }) =>
    nearest === undefined || distance === undefined ? { gpu } : { gpu, rail: nearest.name, distance },
  );
  return { rails, gpus };
}

/** One line for each rail, then one for each GPU. */
export function describePlan({ rails, gpus }: RailPlan): readonly string[] {
  return [...rails.map(describeRail), ...gpus.map(describeGpu)];
}

function usableRails(interfaces: readonly HostInterface[]): readonly Rail[] {
  try {
    return listRails('^lo', interfaces);
  } catch {
    return [];
  }
}

function hardwareOf(rail: Rail, files: FileProbe): RailHardware {
  const folder = `/sys/class/net/${rail.name}`;
  const megabits = Number(files.readText(`${folder}/speed`) ?? Number.NaN);
  const mtuBytes = Number(files.readText(`${folder}/mtu`) ?? Number.NaN);
  const device = deviceOf(rail.name, files);
  return {
    ...rail,
    // Drivers that do not know the speed of their link say -1.
    ...(megabits > 0 ? { gigabitsPerSecond: megabits / 1000 } : {}),
    ...(mtuBytes > 0 ? { mtuBytes } : {}),
    ...(device === undefined ? {} : { device }),
  };
}

/** Bonds, bridges and VLANs have none of their own: that of the first interface below them counts. */
function deviceOf(name: string, files: FileProbe, depth = 0): PciDevice | undefined {
  const folder = `/sys/class/net/${name}`;
  const own = pciDeviceOf(files, `${folder}/device`);
  if (own !== undefined || depth === 4) return own;
  for (const entry of files.list(folder)) {
    if (!entry.startsWith('lower_')) continue;
    const lower = deviceOf(entry.slice('lower_'.length), files, depth + 1);
    if (lower !== undefined) return lower;
  }
  return undefined;
}

function describeRail({ name, address, gigabitsPerSecond, mtuBytes, device }: RailHardware): string {
  const facts = [
    address,
    gigabitsPerSecond === undefined ? 'speed unknown' : `${gigabitsPerSecond} Gbps`,
    ...(mtuBytes === undefined ? [] : [`MTU ${mtuBytes}`]),
    ...(device === undefined ? ['no PCI device'] : [`PCI ${device.address}`]),
    ...(device?.numaNode === undefined ? [] : [`NUMA node ${device.numaNode}`]),
  ];
  return `${name}: ${facts.join(', ')}`;
}

function describeGpu({ gpu, rail, distance }: GpuRail): string {
  if (rail === undefined || distance === undefined) return `GPU ${gpu}: no rail has a PCI device`;
  return `GPU ${gpu}: ${rail} (${distance.relation}, ${distance.hops} hops)`;
}
