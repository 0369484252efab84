// What a device and its ports tell of themselves, as plain values.
import type { Block } from '../../abi/layout.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { FileProbe } from '../file-probe.ts';
import { nativeError } from '../library.ts';
import { type ibvDeviceAttributes, type ibvGidEntry, type ibvPortAttributes, mtuBytes } from './c-structs.ts';

// What the numbers of libibverbs mean in words.

/** ibv_port_state by number. */
const portStates = ['no change', 'down', 'initialized', 'armed', 'active', 'active, deferred'] as const;

/** Physical states by number, of port_attr. */
const physicalStates = [
  'no change',
  'sleep',
  'polling',
  'disabled',
  'training',
  'link up',
  'error recovery',
  'PHY test',
] as const;

/** Lanes of a link, by active_width. */
const linkLanes: Readonly<Record<number, number>> = { 1: 1, 2: 4, 4: 8, 8: 12, 16: 2 };

/** Gbit/s of each lane as the kernel counts them, and the name of the speed, by active_speed. */
const laneSpeeds: Readonly<Record<number, readonly [gigabits: number, name: string]>> = {
  1: [2.5, 'SDR'],
  2: [5, 'DDR'],
  4: [10, 'QDR'],
  8: [10, 'FDR10'],
  16: [14, 'FDR'],
  32: [25, 'EDR'],
  64: [50, 'HDR'],
  128: [100, 'NDR'],
};

/** max_vl_num in virtual lanes. */
const virtualLanes: Readonly<Record<number, string>> = {
  1: 'VL0',
  2: 'VL0-VL1',
  3: 'VL0-VL3',
  4: 'VL0-VL7',
  5: 'VL0-VL14',
};

const linkLayers = ['unspecified', 'InfiniBand', 'Ethernet'] as const;

const gidTypes = ['InfiniBand', 'RoCE v1', 'RoCE v2'] as const;

/** ibv_atomic_cap by number. */
const atomicCapabilities = ['none', 'within the device', 'with all of the host'] as const;

// Why a device refused to make something: which limit it is, and how to raise it.

const ENOMEM = 12;
const EAGAIN = 11;
const ENOSPC = 28;
const EDQUOT = 122;
const scarce: readonly number[] = [ENOMEM, EAGAIN, ENOSPC, EDQUOT];

/** What was asked for. `held`: how many of its kind this process has of the device. */
interface RefusedRequest {
  readonly call: string;
  /** "registering 64 KiB" */
  readonly what: string;
  readonly device: string;
  readonly attributes: DeviceAttributes;
  /** The attribute of the device that limits how many there are. */
  readonly limit: 'maxQp' | 'maxCq' | 'maxMr' | 'maxPd' | 'maxSrq' | 'maxAh';
  readonly held: number;
  /** Memory that the request would pin. */
  readonly bytes: number;
}

/** Names of the limits in libibverbs. */
const limitNames = {
  maxQp: 'max_qp',
  maxCq: 'max_cq',
  maxMr: 'max_mr',
  maxPd: 'max_pd',
  maxSrq: 'max_srq',
  maxAh: 'max_ah',
} as const;

/** The error of a call that returned `result`, a negative errno. Where resources are short, it is a WL_CAPACITY. */
export function refusalOf(request: RefusedRequest, result: number, files: FileProbe): WeftlineError {
  const { call, what, device, attributes, limit, held, bytes } = request;
  const plain = nativeError(call, `${what} on ${device}`, result);
  if (!scarce.includes(-result)) return plain;
  const most = attributes[limit];
  const memory = lockedMemory(files);
  const details = { call, errno: -result, device, [limitNames[limit]]: most, held, lockedLimitBytes: memory?.limit };
  const because = (reason: string): WeftlineError =>
    new WeftlineError('WL_CAPACITY', `${plain.message}: ${reason}`, { details, cause: plain });
  if (held >= most) {
    return because(
      `this process has all ${most} that the device offers (${limitNames[limit]}): close some, or use another device`,
    );
  }
  if (memory !== undefined && memory.limit !== Infinity && memory.pinned + bytes > memory.limit) {
    return because(
      `the limit of locked memory (RLIMIT_MEMLOCK) is ${formatBytes(memory.limit)}, of which ${formatBytes(memory.pinned)} are in use: raise it with "ulimit -l unlimited", with memlock in /etc/security/limits.conf, with LimitMEMLOCK= of a service, or with --ulimit memlock=-1 of a container`,
    );
  }
  const locked = memory === undefined || memory.limit === Infinity ? 'unlimited' : formatBytes(memory.limit);
  return because(
    `the device or the kernel is out of room: other processes may hold part of the ${most} that the device offers (${limitNames[limit]}; "rdma resource" tells), the limit of locked memory is ${locked}, or memory is short`,
  );
}

/** Fails with WL_CAPACITY if a size is beyond what the device offers. */
export function requireWithin(
  device: string,
  what: string,
  value: number,
  limit: readonly [name: string, most: number],
): void {
  const [name, most] = limit;
  if (value <= most) return;
  throw new WeftlineError(
    'WL_CAPACITY',
    `${device} cannot have ${value} ${what}: it offers at most ${most} (${name}), which is fixed by the device; ask for fewer`,
    { details: { device, [name]: most, asked: value } },
  );
}

/** Bytes of the soft limit, and what is pinned of it. Undefined where /proc cannot be read. */
function lockedMemory(files: FileProbe): { readonly limit: number; readonly pinned: number } | undefined {
  const limit = /^Max locked memory\s+(\S+)/m.exec(files.readText('/proc/self/limits') ?? '')?.[1];
  if (limit === undefined) return undefined;
  const status = files.readText('/proc/self/status') ?? '';
  const kib = (label: string): number => Number(new RegExp(`^${label}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
  // The kernel counts pages that a device pins apart from those that a process locks itself.
  const pinned = kib('VmPin') * 1024;
  return { limit: limit === 'unlimited' ? Infinity : Number(limit), pinned };
}

type Fields<L extends { readonly offset: object }> = Block<Extract<keyof L['offset'], string>>;

/** struct ibv_device_attr, under its own names. Sizes in bytes. */
export interface DeviceAttributes {
  readonly fwVer: string;
  /** 16 hexadecimal digits, as ibv_devices prints them. */
  readonly nodeGuid: string;
  readonly sysImageGuid: string;
  readonly maxMrSize: number;
  /** Bit n: pages of 2^n bytes can be registered. */
  readonly pageSizeCap: number;
  readonly vendorId: number;
  readonly vendorPartId: number;
  readonly hwVer: number;
  readonly maxQp: number;
  readonly maxQpWr: number;
  readonly maxSge: number;
  readonly maxCq: number;
  readonly maxCqe: number;
  readonly maxMr: number;
  readonly maxPd: number;
  readonly maxQpRdAtom: number;
  readonly maxResRdAtom: number;
  readonly maxQpInitRdAtom: number;
  readonly atomicCap: string;
  readonly maxAh: number;
  readonly maxSrq: number;
  readonly maxSrqWr: number;
  readonly maxSrqSge: number;
  readonly physPortCnt: number;
}

/** struct ibv_port_attr, under its own names; enumerations in words. */
export interface PortAttributes {
  readonly state: string;
  readonly maxMtuBytes: number;
  readonly activeMtuBytes: number;
  readonly gidTblLen: number;
  readonly portCapFlags: number;
  readonly maxMsgSz: number;
  readonly lid: number;
  readonly smLid: number;
  readonly lmc: number;
  readonly maxVlNum: string;
  readonly smSl: number;
  /** Lanes of the link. */
  readonly activeWidth: number;
  /** "25 Gbit/s per lane (EDR)" */
  readonly activeSpeed: string;
  readonly gigabitsPerSecond: number;
  readonly physState: string;
  readonly linkLayer: string;
}

export interface GidEntry {
  readonly port: number;
  readonly index: number;
  /** Eight groups of four hexadecimal digits. */
  readonly gid: string;
  readonly type: string;
  /** Index of the network interface behind it; 0 if it has none. */
  readonly interfaceIndex: number;
}

export function deviceAttributesOf(block: Fields<typeof ibvDeviceAttributes>): DeviceAttributes {
  const firmware = bytesOf(block, 'firmware', 64);
  return {
    fwVer: Buffer.from(firmware).toString('latin1').replace(/\0.*$/s, ''),
    nodeGuid: hexOf(bytesOf(block, 'nodeGuid', 8)),
    sysImageGuid: hexOf(bytesOf(block, 'systemImageGuid', 8)),
    maxMrSize: block.get('maxMrSize'),
    pageSizeCap: block.get('pageSizes'),
    vendorId: block.get('vendorId'),
    vendorPartId: block.get('vendorPartId'),
    hwVer: block.get('hardwareVersion'),
    maxQp: block.get('maxQp'),
    maxQpWr: block.get('maxQpWr'),
    maxSge: block.get('maxSge'),
    maxCq: block.get('maxCq'),
    maxCqe: block.get('maxCqe'),
    maxMr: block.get('maxMr'),
    maxPd: block.get('maxPd'),
    maxQpRdAtom: block.get('maxQpReads'),
    maxResRdAtom: block.get('maxDeviceReads'),
    maxQpInitRdAtom: block.get('maxQpInitiatedReads'),
    atomicCap: named(atomicCapabilities, block.get('atomics')),
    maxAh: block.get('maxAh'),
    maxSrq: block.get('maxSrq'),
    maxSrqWr: block.get('maxSrqWr'),
    maxSrqSge: block.get('maxSrqSge'),
    physPortCnt: block.get('ports'),
  };
}

export function portAttributesOf(block: Fields<typeof ibvPortAttributes>): PortAttributes {
  const lanes = linkLanes[block.get('activeWidth')] ?? 0;
  const speed = laneSpeeds[block.get('activeSpeed')];
  return {
    state: named(portStates, block.get('state')),
    maxMtuBytes: mtuBytes[block.get('maxMtu')] ?? 0,
    activeMtuBytes: mtuBytes[block.get('activeMtu')] ?? 0,
    gidTblLen: block.get('gids'),
    portCapFlags: block.get('capabilities'),
    maxMsgSz: block.get('maxMessageBytes'),
    lid: block.get('lid'),
    smLid: block.get('subnetManagerLid'),
    lmc: block.get('lidMask'),
    maxVlNum: virtualLanes[block.get('virtualLanes')] ?? `unknown (${block.get('virtualLanes')})`,
    smSl: block.get('subnetManagerLevel'),
    activeWidth: lanes,
    activeSpeed:
      speed === undefined ? `unknown (${block.get('activeSpeed')})` : `${speed[0]} Gbit/s per lane (${speed[1]})`,
    gigabitsPerSecond: lanes * (speed?.[0] ?? 0),
    physState: named(physicalStates, block.get('physicalState')),
    linkLayer: named(linkLayers, block.get('linkLayer')),
  };
}

export function gidOf(block: Fields<typeof ibvGidEntry>): GidEntry {
  return {
    port: block.get('port'),
    index: block.get('index'),
    gid: hexOf(bytesOf(block, 'gid', 16)).replaceAll(/(....)(?!$)/g, '$1:'),
    type: named(gidTypes, block.get('type')),
    interfaceIndex: block.get('interfaceIndex'),
  };
}

function bytesOf<Name extends string>(block: Block<Name>, field: Name, count: number): Uint8Array {
  return Uint8Array.from({ length: count }, (_, index) => block.get(field, index));
}

function hexOf(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

function named(names: readonly string[], value: number): string {
  return names[value] ?? `unknown (${value})`;
}
