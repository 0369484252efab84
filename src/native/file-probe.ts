// What a search for libraries and devices asks of a machine: its variables and its files. Tests put another machine in its place.
import { existsSync, readdirSync, readFileSync, realpathSync } from 'node:fs';

/** Reading never throws: what is missing or forbidden is undefined or empty. */
export interface FileProbe {
  readonly arch: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readText(path: string): string | undefined;
  exists(path: string): boolean;
  /** Names in a folder, sorted. */
  list(folder: string): readonly string[];
  /** The path without symbolic links. */
  realPath(path: string): string | undefined;
}

/** The machine we run on. */
export function localFiles(): FileProbe {
  return {
    arch: process.arch,
    env: process.env,
    readText: (path) => orUndefined(() => readFileSync(path, 'latin1')),
    exists: (path) => existsSync(path),
    list: (folder) => orUndefined(() => readdirSync(folder).toSorted()) ?? [],
    realPath: (path) => orUndefined(() => realpathSync(path)),
  };
}

export function orUndefined<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

// RDMA devices of a machine and which of their ports are up, as the kernel tells.

const DEVICES = '/sys/class/infiniband';

interface RdmaDevice {
  readonly device: string;
  /** "1: 400 Gb/sec (4X NDR)" for each port that is up. */
  readonly ports: readonly string[];
}

export function rdmaDevices(machine: FileProbe): readonly RdmaDevice[] {
  return machine.list(DEVICES).map((device) => ({ device, ports: activePorts(machine, device) }));
}

/** "mlx5_0:1" for each port that is up. */
export function activeRdmaPorts(machine: FileProbe): readonly string[] {
  return rdmaDevices(machine).flatMap(({ device, ports }) =>
    ports.map((port) => `${device}:${port.slice(0, port.indexOf(':'))}`),
  );
}

function activePorts(machine: FileProbe, device: string): string[] {
  const folder = `${DEVICES}/${device}/ports`;
  return machine
    .list(folder)
    .filter((port) => machine.readText(`${folder}/${port}/state`)?.includes('ACTIVE'))
    .map((port) => `${port}: ${machine.readText(`${folder}/${port}/rate`)?.trim() ?? 'unknown rate'}`);
}
