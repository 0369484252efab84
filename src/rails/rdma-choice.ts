// Chooses which ports of which RDMA devices a process uses, under which address (GID), and says why not the others.
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import type { FileProbe } from '../native/file-probe.ts';
import { ProtectionDomain, VerbsContext, verbsDeviceNames } from '../native/verbs/context.ts';
import { whyNoDmabuf } from '../native/verbs/memory-region.ts';
import type { DeviceAttributes, GidEntry, PortAttributes } from '../native/verbs/facts.ts';
import { type Settings, settingsTable } from '../settings/settings.ts';
import { nearestDevices, type PciDevice, pciDeviceOf, pciDistance, type PciDistance } from './nearest-device.ts';
import { type HostInterface, matchingNames, type NamePattern, readNameList } from './rail-list.ts';

export type RdmaSettings = Pick<
  Settings,
  | 'rdmaDevices'
  | 'rdmaPort'
  | 'rdmaGidIndex'
  | 'rdmaService'
  | 'rdmaTrafficClass'
  | 'rdmaRelaxedOrdering'
  | 'rdmaGpuMemory'
  | 'rdmaControlInterface'
>;

/** A port that may be used. */
export interface RdmaRail {
  /** The device's name: mlx5_0. */
  readonly name: string;
  readonly port: number;
  readonly gid: RdmaGid;
  /** Why this GID. */
  readonly gidReason: string;
  readonly gigabitsPerSecond: number;
  readonly mtuBytes: number;
  readonly device?: PciDevice;
}

export interface RdmaChoice {
  /** The best first; empty if RDMA cannot be used. */
  readonly rails: readonly RdmaRail[];
  /** Why the first one is the best; undefined without any. */
  readonly reason?: string;
  /** Devices and ports that are not used. */
  readonly others: readonly { readonly name: string; readonly port?: number; readonly reason: string }[];
  /** The nearest rail of each GPU. */
  readonly gpus: readonly {
    readonly gpu: string;
    readonly rail?: string;
    readonly port?: number;
    readonly distance?: PciDistance;
  }[];
  /** The interface over which peers meet; undefined where the setting leaves that to the addresses. */
  readonly control?: HostInterface;
}

export interface RdmaHost {
  readonly devices: readonly RdmaDevice[];
  readonly gpus: readonly PciDevice[];
  readonly interfaces: readonly HostInterface[];
}

/**
 * Fastest ports first, then by name. Fails with WL_CONFIG for a setting that names what this host does not have.
 * @param settings Which devices, port, GID and interface the user wants.
 */
export function chooseRdma({ devices, gpus, interfaces }: RdmaHost, settings: RdmaSettings): RdmaChoice {
  const isWanted = deviceFilter(settings.rdmaDevices, devices);
  const wantedGid = wantedGidIndex(settings, devices);
  const others: { name: string; port?: number; reason: string }[] = [];
  const rails: RdmaRail[] = [];
  /** Ports that could be used if they have the address that is wanted. */
  const candidates: { readonly name: string; readonly port: RdmaPort }[] = [];
  for (const device of devices) {
    const { name, problem } = device;
    if (problem !== undefined) others.push({ name, reason: problem });
    for (const port of device.ports) {
      const reason = whyNot(port, isWanted(name, port.number), settings.rdmaPort);
      const rail = reason === undefined ? railOf(device, port, wantedGid) : reason;
      if (typeof rail === 'string') others.push({ name, port: port.number, reason: rail });
      else rails.push(rail);
      if (reason === undefined) candidates.push({ name, port });
    }
  }
  if (wantedGid !== undefined && rails.length === 0 && candidates.length > 0) throw noSuchGid(wantedGid, candidates);
  // Sorting keeps the order of names among equals.
  const sorted = rails.toSorted((a, b) => b.gigabitsPerSecond - a.gigabitsPerSecond);
  const nearest = nearestDevices(gpus, sorted).map(({ gpu, nearest: rail, distance }) =>
    rail === undefined || distance === undefined ? { gpu } : { gpu, rail: rail.name, port: rail.port, distance },
  );
  const reason = reasonOf(sorted);
  const control = controlInterface(settings.rdmaControlInterface, interfaces);
  return {
    rails: sorted,
    others,
    gpus: nearest,
    ...(reason === undefined ? {} : { reason }),
    ...(control === undefined ? {} : { control }),
  };
}

/** The port for memory of a GPU: of the fastest ones the nearest, of those equally near one that fewer GPUs take. */
export function railOfGpu(rails: readonly RdmaRail[], gpu: string, gpus: readonly PciDevice[]): RdmaRail | undefined {
  const [best] = rails;
  const fastest = rails.filter(({ gigabitsPerSecond }) => gigabitsPerSecond === best?.gigabitsPerSecond);
  return nearestDevices(gpus, fastest).find((one) => one.gpu === gpu)?.nearest ?? best;
}

/** Why the device of a port should not reach memory of that GPU, as the end of a sentence; undefined if nobody knows a reason. */
export function whyTooFar({ name, device }: RdmaRail, gpu: PciDevice | undefined): string | undefined {
  if (device?.numaNode === undefined || gpu?.numaNode === undefined) return undefined;
  if (pciDistance(gpu, device).relation !== 'other NUMA node') return undefined;
  return `${name} is on NUMA node ${device.numaNode} and the GPU on ${gpu.numaNode}, which is slower than through memory of the host (WEFTLINE_RDMA_DEVICES names a nearer device)`;
}

function whyNot({ number, attributes }: RdmaPort, verdict: string | undefined, wantedPort: number): string | undefined {
  if (verdict !== undefined) return verdict;
  if (wantedPort !== 0 && wantedPort !== number) return 'it is not the port of the setting rdmaPort';
  return attributes.state === 'active' ? undefined : `its state is ${attributes.state} (${attributes.physState})`;
}

function reasonOf([best, second]: readonly RdmaRail[]): string | undefined {
  if (best === undefined) return undefined;
  if (second === undefined) return 'the only port that can be used';
  if (best.gigabitsPerSecond > second.gigabitsPerSecond) return 'the fastest port that can be used';
  return 'the first by name of the fastest ports that can be used';
}

/** Says why a port of a device is not wanted; undefined if it is. */
function deviceFilter(
  text: string,
  devices: readonly RdmaDevice[],
): (name: string, port: number) => string | undefined {
  const list = text.trim();
  if (list === '') return () => undefined;
  const names = readNameList(list);
  const wrong = (expected: string): WeftlineError => wrongSetting('rdmaDevices', text, expected, namesOf(devices));
  if (names === undefined) {
    throw wrong('names of devices with commas between them, "=" before exact names, or "^" before the whole list');
  }
  const matches = names.patterns.map((pattern) => withPort(pattern, devices, wrong));
  const isListed = (name: string, port: number): boolean =>
    matches.some((match) => match.devices.has(name) && (match.port === undefined || match.port === port));
  const reason = names.isExclusion ? 'the setting rdmaDevices excludes it' : 'it is not in the setting rdmaDevices';
  return (name, port) => (isListed(name, port) === names.isExclusion ? reason : undefined);
}

/** `mlx5_0:1` is port 1 of that device. */
function withPort(
  { name, isExact }: NamePattern,
  devices: readonly RdmaDevice[],
  wrong: (expected: string) => WeftlineError,
): { readonly devices: ReadonlySet<string>; readonly port: number | undefined } {
  const [plain = '', port, ...more] = name.split(':');
  if (more.length > 0 || (port !== undefined && !/^\d+$/.test(port)))
    throw wrong(`a name and a port, not ${quote(name)}`);
  const found = matchingNames({ name: plain, isExact }, devices);
  if (found.length === 0) throw wrong(`devices of this host, not ${quote(plain)}`);
  return { devices: new Set(found.map((device) => device.name)), port: port === undefined ? undefined : Number(port) };
}

function railOf(device: RdmaDevice, port: RdmaPort, wantedGid: number | undefined): RdmaRail | string {
  const choice = chooseGid(port, wantedGid);
  if (typeof choice === 'string') return choice;
  const { gigabitsPerSecond, activeMtuBytes } = port.attributes;
  return {
    name: device.name,
    port: port.number,
    gid: choice.gid,
    gidReason: choice.reason,
    gigabitsPerSecond,
    mtuBytes: activeMtuBytes,
    ...(device.device === undefined ? {} : { device: device.device }),
  };
}

const IPV4 = '0000:0000:0000:0000:0000:ffff:';
const LOOPBACK = `${IPV4}7f`;
const LINK_LOCAL = 'fe80:';

/** Kinds of addresses, the best first: those that a network is likely to route. */
const gidKinds = [
  { words: 'IPv4', isOf: (gid: string) => gid.startsWith(IPV4) && !gid.startsWith(LOOPBACK) },
  { words: 'IPv6', isOf: (gid: string) => !gid.startsWith(IPV4) && !gid.startsWith(LINK_LOCAL) },
  { words: 'IPv4 of the loopback device', isOf: (gid: string) => gid.startsWith(LOOPBACK) },
  { words: 'IPv6 that holds on its own link only', isOf: (gid: string) => gid.startsWith(LINK_LOCAL) },
] as const;

/** The setting as a number, which is checked without a port too; undefined if weftline chooses. */
function wantedGidIndex({ rdmaGidIndex }: RdmaSettings, devices: readonly RdmaDevice[]): number | undefined {
  const text = rdmaGidIndex.trim();
  if (text === '') return undefined;
  if (/^\d{1,5}$/.test(text)) return Number(text);
  throw wrongSetting('rdmaGidIndex', rdmaGidIndex, 'a whole number, the index of a GID', namesOf(devices));
}

function noSuchGid(
  wanted: number,
  candidates: readonly { readonly name: string; readonly port: RdmaPort }[],
): WeftlineError {
  const ports = candidates.map(({ name, port }) => `${name} port ${port.number}`);
  const there = candidates.map(({ port: { gids } }, index) => {
    const all = gids.map((gid) => `${gid.index} (${gid.gid}, ${gid.type})`).join(', ');
    return `${ports[index]} with ${all || 'no GID'}`;
  });
  return wrongSetting('rdmaGidIndex', String(wanted), `an index of ${ports.join(' or ')}`, there.join('; '));
}

function chooseGid(
  { attributes, gids }: RdmaPort,
  wanted: number | undefined,
): { readonly gid: RdmaGid; readonly reason: string } | string {
  if (wanted !== undefined) {
    const gid = gids.find(({ index }) => index === wanted);
    return gid === undefined ? `it has no GID ${wanted}` : { gid, reason: 'the setting rdmaGidIndex' };
  }
  if (attributes.linkLayer !== 'Ethernet') {
    const [first] = gids;
    return first === undefined ? 'it has no GID' : { gid: first, reason: 'the first of an InfiniBand port' };
  }
  const routable = gids.filter(({ type }) => type === 'RoCE v2');
  for (const { words, isOf } of gidKinds) {
    const gid = routable.find((each) => isOf(each.gid));
    if (gid !== undefined) return { gid, reason: `RoCE v2, ${words}` };
  }
  return gids.length === 0 ? 'it has no GID: give its network interface an address' : 'it has no GID of RoCE v2';
}

function controlInterface(text: string, interfaces: readonly HostInterface[]): HostInterface | undefined {
  const name = text.trim();
  if (name === '') return undefined;
  const found = interfaces.find((one) => one.name === name);
  if (found !== undefined) return found;
  const there = interfaces.map((one) => one.name).join(', ') || 'no interface with an address';
  throw wrongSetting('rdmaControlInterface', text, 'an interface of this host that has an address', there);
}

function namesOf(devices: readonly RdmaDevice[]): string {
  return devices.map(({ name }) => name).join(', ') || 'no RDMA device';
}

function wrongSetting(setting: keyof RdmaSettings, value: string, expected: string, there: string): WeftlineError {
  return new WeftlineError(
    'WL_CONFIG',
    `Invalid setting ${setting} (${settingsTable[setting].env}): expected ${expected}, got ${quote(value)}. This host has ${there}`,
    { details: { setting, value, expected } },
  );
}

export interface RdmaPort {
  /** Number from 1. */
  readonly number: number;
  readonly attributes: PortAttributes;
  readonly gids: readonly RdmaGid[];
}

export interface RdmaGid {
  readonly index: number;
  /** Eight groups of four hexadecimal digits. */
  readonly gid: string;
  /** InfiniBand, RoCE v1 or RoCE v2. */
  readonly type: string;
  /** The network interface behind it, such as eth0. */
  readonly interface?: string;
}

export interface RdmaDevice {
  readonly name: string;
  /** Why the rest is missing: it could not be opened. */
  readonly problem?: string;
  readonly attributes?: DeviceAttributes;
  /** Why it registers no dmabuf, as the end of a sentence; missing if it does. */
  readonly dmabufProblem?: string;
  readonly ports: readonly RdmaPort[];
  /** Missing for devices without hardware, such as rxe. */
  readonly device?: PciDevice;
}

const FOLDER = '/sys/class/infiniband';

/** Opens each device for a moment. Fails with WL_UNSUPPORTED without libibverbs. */
export function rdmaHardware(files: FileProbe): readonly RdmaDevice[] {
  const names = new Intl.Collator('en', { numeric: true });
  return [...verbsDeviceNames()].toSorted((a, b) => names.compare(a, b)).map((name) => readDevice(name, files));
}

function readDevice(name: string, files: FileProbe): RdmaDevice {
  const device = pciDeviceOf(files, `${FOLDER}/${name}/device`);
  const place = device === undefined ? {} : { device };
  try {
    using context = VerbsContext.open(name);
    const gids = context.queryGids();
    const ports = Array.from({ length: context.attributes.physPortCnt }, (_, index) => ({
      number: index + 1,
      attributes: context.queryPort(index + 1),
      gids: gids.filter(({ port }) => port === index + 1).map((gid) => describeGid(name, gid, files)),
    }));
    using domain = new ProtectionDomain(context);
    const dmabufProblem = whyNoDmabuf(domain);
    const dmabuf = dmabufProblem === undefined ? {} : { dmabufProblem };
    return { name, attributes: context.attributes, ...dmabuf, ports, ...place };
  } catch (error) {
    return { name, problem: asWeftlineError(error).message, ports: [], ...place };
  }
}

function describeGid(device: string, { port, index, gid, type }: GidEntry, files: FileProbe): RdmaGid {
  const owner = files.readText(`${FOLDER}/${device}/ports/${port}/gid_attrs/ndevs/${index}`)?.trim() ?? '';
  return { index, gid, type, ...(owner === '' ? {} : { interface: owner }) };
}
