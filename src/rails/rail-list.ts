// The setting transportRails: which network interfaces of this host carry packets, in which order, and which of them is
// nearest to each GPU.
import { isIP, isIPv4, SocketAddress } from 'node:net';
import { networkInterfaces } from 'node:os';
import { WeftlineError } from '../core/errors.ts';
import { printable, quote } from '../core/quote.ts';
import { isLoopback } from '../meeting/route.ts';
import { type FileProbe, localFiles } from '../native/file-probe.ts';
import { gpuDevices, nearestDevices, type PciDevice, pciDeviceOf, type PciDistance } from './nearest-device.ts';

/** One network interface of this host that carries packets. Two hosts pair their rails by index. */
interface Rail {
  /** Name of the interface: eth0. */
  readonly name: string;
  /** A numeric address of it. */
  readonly address: string;
}

/** A host has a rail per GPU or two. More are a list that meant something else. */
const MAX_RAILS = 32;

/**
 * Reads a list of rails:
 * - empty: no rails; packets go where the control channel goes.
 * - `10.0.0.1,fd00::7`: addresses of this host.
 * - `eth0,ib`: interfaces. A name means that interface, or else all interfaces whose names begin so.
 * - `=eth0,ib0`, or `eth,=ib0`: the name alone, never a beginning.
 * - `^docker,veth`, `^=eth0`: all interfaces but these and loopback.
 *
 * An interface is used with its first IPv4 address, or else its first IPv6 address. Fails with WL_CONFIG for a name or an
 * address that this host does not have, and for a rail that is named twice.
 * @param text The value of the setting.
 * @param interfaces Those of this host.
 */
export function listRails(text: string, interfaces: readonly HostInterface[]): readonly Rail[] {
  const list = text.trim();
  if (list === '') return [];
  const wrong = (expected: string): WeftlineError => wrongRails(text, expected, interfaces);
  const names = readNameList(list);
  if (names === undefined) {
    throw wrong(
      'names of interfaces or addresses with commas between them, "=" before exact names, or "^" before the whole list',
    );
  }
  const { isExclusion, patterns } = names;
  const rails = isExclusion
    ? allBut(patterns, interfaces)
    : patterns.flatMap((pattern) => named(pattern, interfaces, wrong));
  if (rails.length === 0) throw wrong('a list that leaves an interface with an address');
  if (rails.length > MAX_RAILS) throw wrong(`at most ${MAX_RAILS} rails, not ${rails.length}`);
  const twice = rails.find((rail, index) => rails.findIndex(({ address }) => address === rail.address) < index);
  if (twice !== undefined) throw wrong(`each rail once, not ${twice.name} (${twice.address}) twice`);
  return rails;
}

function named(
  pattern: NamePattern,
  interfaces: readonly HostInterface[],
  wrong: (expected: string) => WeftlineError,
): readonly Rail[] {
  const address = canonical(pattern.name);
  if (address !== undefined) {
    const owner = interfaces.find((one) => owns(one, address));
    if (owner === undefined) throw wrong(`addresses of this host, not ${address}`);
    return [{ name: owner.name, address }];
  }
  const found = matchingNames(pattern, interfaces);
  if (found.length === 0) throw wrong(`interfaces of this host that have an address, not ${quote(pattern.name)}`);
  return found.map(railOf);
}

function allBut(patterns: readonly NamePattern[], interfaces: readonly HostInterface[]): readonly Rail[] {
  const excluded = new Set(
    patterns.flatMap((pattern) => {
      const address = canonical(pattern.name);
      if (address === undefined) return matchingNames(pattern, interfaces);
      return interfaces.filter((one) => owns(one, address));
    }),
  );
  return interfaces.filter((one) => !excluded.has(one) && !one.addresses.every(isLoopback)).map(railOf);
}

function railOf({ name, addresses }: HostInterface): Rail {
  const routed = addresses.filter((each) => !isLinkLocal(each));
  return { name, address: routed.find((each) => isIPv4(each)) ?? routed[0] ?? addresses[0]! };
}

/** True for 169.254.0.0/16: a host gives itself such an address where nobody else gave it one. */
function isLinkLocal(address: string): boolean {
  return address.startsWith('169.254.');
}

/** An interface with one address of 127.0.0.0/8 has all of them. */
function owns({ addresses }: HostInterface, address: string): boolean {
  if (addresses.some((each) => canonical(each) === address)) return true;
  return isIPv4(address) && isLoopback(address) && addresses.some((each) => isIPv4(each) && isLoopback(each));
}

/** The one way to write an address; undefined for text that is none. */
function canonical(text: string): string | undefined {
  const family = isIP(text);
  if (family === 0 || text.includes('%')) return undefined;
  return new SocketAddress({ address: text, family: family === 6 ? 'ipv6' : 'ipv4' }).address;
}

function wrongRails(text: string, expected: string, interfaces: readonly HostInterface[]): WeftlineError {
  const there = interfaces.map(({ name, addresses }) => `${printable(name)} (${addresses.join(', ')})`);
  const names = interfaces.map(({ name }) => name);
  return new WeftlineError(
    'WL_CONFIG',
    `Invalid setting transportRails (WEFTLINE_TRANSPORT_RAILS): expected ${expected}, got ${quote(text)}. This host has ${there.join(', ') || 'no interface with an address'}`,
    { details: { setting: 'transportRails', value: text, expected, interfaces: names } },
  );
}

// Lists of devices as settings have them: names, beginnings of names, exact names, or all but some.

export interface NamePattern {
  readonly name: string;
  readonly isExact: boolean;
}

interface NameList {
  /** All but those that match. */
  readonly isExclusion: boolean;
  readonly patterns: readonly NamePattern[];
}

/** `eth0,ib`, `=eth0,ib0` (all exact), `eth,=ib0`, `^docker,veth`, `^=eth0`; undefined for what is no such list. */
export function readNameList(text: string): NameList | undefined {
  const list = text.trim();
  const isExclusion = list.startsWith('^');
  const names = isExclusion ? list.slice(1).trim() : list;
  const areExact = names.startsWith('=');
  const elements = (areExact ? names.slice(1) : names).split(',').map((element) => element.trim());
  const patterns = elements.map((element) => {
    const isExact = element.startsWith('=');
    return { name: isExact ? element.slice(1).trim() : element, isExact: areExact || isExact };
  });
  if (patterns.some(({ name }) => name === '' || /[\^=]/.test(name))) return undefined;
  return { isExclusion, patterns };
}

/** What a pattern means: the one of that name, or else, if it is not exact, all whose names begin so. */
export function matchingNames<T extends { readonly name: string }>(
  { name, isExact }: NamePattern,
  things: readonly T[],
): readonly T[] {
  const same = things.filter((one) => one.name === name);
  if (same.length > 0 || isExact) return same;
  return things.filter((one) => one.name.startsWith(name));
}

// The network interfaces of this host with the addresses that peers can reach.

/** An interface that is up and has an address that means something without a zone. */
export interface HostInterface {
  readonly name: string;
  /** Numeric; at least one. */
  readonly addresses: readonly string[];
}

/** Interfaces in the natural order of their names, eth2 before eth10, so that hosts that are wired alike list them alike. */
export function hostInterfaces(): readonly HostInterface[] {
  const names = new Intl.Collator('en', { numeric: true });
  return Object.entries(networkInterfaces())
    .map(([name, entries = []]) => ({
      name,
      addresses: entries.filter(({ scopeid = 0 }) => scopeid === 0).map(({ address }) => address),
    }))
    .filter(({ addresses }) => addresses.length > 0)
    .toSorted((a, b) => names.compare(a.name, b.name));
}

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
  const listed = listRails(list, interfaces);
  const rails = (listed.length > 0 ? listed : usableRails(interfaces)).map((rail) => hardwareOf(rail, files));
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
