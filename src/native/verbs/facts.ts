// What a device and its ports tell of themselves, as plain values.
import type { Block } from '../../abi/layout.ts';
import type { ibvDeviceAttributes, ibvGidEntry, ibvPortAttributes } from './c-structs.ts';
import {
  atomicCapabilities,
  gidTypes,
  laneSpeeds,
  linkLanes,
  linkLayers,
  mtuBytes,
  physicalStates,
  portStates,
  virtualLanes,
} from './c-numbers.ts';

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
  /** Of the network interface behind it; 0 if it has none. */
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
