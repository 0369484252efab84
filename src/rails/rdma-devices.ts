// The RDMA devices of this host: what each tells of itself, its ports with their addresses, its place on the PCI bus.
import { asWeftlineError } from '../core/errors.ts';
import type { FileProbe } from '../native/file-probe.ts';
import { VerbsContext, verbsDeviceNames } from '../native/verbs/context.ts';
import type { DeviceAttributes, GidEntry, PortAttributes } from '../native/verbs/facts.ts';
import { type PciDevice, pciDeviceOf } from './nearest-device.ts';

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
    return { name, attributes: context.attributes, ports, ...place };
  } catch (error) {
    return { name, problem: asWeftlineError(error).message, ports: [], ...place };
  }
}

function describeGid(device: string, { port, index, gid, type }: GidEntry, files: FileProbe): RdmaGid {
  const owner = files.readText(`${FOLDER}/${device}/ports/${port}/gid_attrs/ndevs/${index}`)?.trim() ?? '';
  return { index, gid, type, ...(owner === '' ? {} : { interface: owner }) };
}
