// A host with GPUs and network cards, as /sys and /proc show it.
import type { FileProbe } from '#lib/native/file-probe.js';

export interface FakeHost {
  /** PCI path of each device, without /sys/devices/. */
  readonly gpus: readonly string[];
  readonly nics: Readonly<Record<string, string>>;
  /** By PCI path. */
  readonly numaNodes?: Readonly<Record<string, number>>;
  /** Links of an interface to those below it. */
  readonly lower?: Readonly<Record<string, readonly string[]>>;
}

function addressOf(path: string): string {
  return path.split('/').findLast((part) => part.includes('.'))!;
}

export function fakeHost({ gpus, nics, numaNodes = {}, lower = {} }: FakeHost): FileProbe {
  const links = new Map<string, string>([
    ...gpus.map((path) => [`/sys/bus/pci/devices/${addressOf(path)}`, `/sys/devices/${path}`] as const),
    ...Object.entries(nics).map(([name, path]) => [`/sys/class/net/${name}/device`, `/sys/devices/${path}`] as const),
  ]);
  const nodes = new Map(Object.entries(numaNodes).map(([path, node]) => [`/sys/devices/${path}/numa_node`, node]));
  return {
    arch: 'x64',
    env: {},
    readText: (path) => (nodes.has(path) ? `${nodes.get(path)}\n` : undefined),
    exists: () => false,
    list: (folder) => {
      if (folder === '/proc/driver/nvidia/gpus') return gpus.map(addressOf);
      const name = folder.replace('/sys/class/net/', '');
      return ['address', ...(lower[name] ?? []).map((below) => `lower_${below}`), 'mtu'];
    },
    realPath: (path) => links.get(path),
  };
}
