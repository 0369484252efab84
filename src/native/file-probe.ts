// What a search for libraries and devices asks of a machine: its variables and its files. Tests put another machine in its place.
// Finds shared libraries where the dynamic loader would, without loading them.
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

// The places of NVIDIA's libraries: the dynamic loader's folders, CUDA toolkits, Python packages.

/** Names as libnvrtc.so, .so.12, .so.13.0.88; not libnvrtc-builtins.so and libcublasLt.so, which they load themselves. */
const fileNames = {
  nvrtc: /^libnvrtc\.so(\.\d+)*$/,
  cublas: /^libcublas\.so(\.\d+)*$/,
  nccl: /^libnccl\.so(\.\d+)*$/,
} as const;

/** The path of the library; `setting` is the library itself or its folder and wins over every other place. */
export function findCudaLibrary(machine: FileProbe, library: keyof typeof fileNames, setting = ''): string | undefined {
  const fileName = fileNames[library];
  if (setting !== '') {
    const inFolder = newest(machine.list(setting), fileName);
    if (inFolder !== undefined) return `${setting}/${inFolder}`;
    return machine.exists(setting) ? setting : undefined;
  }
  for (const folder of namedFolders(machine)) {
    const found = newest(machine.list(folder), fileName);
    if (found !== undefined) return `${folder}/${found}`;
  }
  return findLibrary(machine, fileName, [...installedFolders(machine), ...wheelFolders(machine)]);
}

/** The highest version; the shortest of equal ones, which is the soname that others link to. */
function newest(names: readonly string[], fileName: RegExp): string | undefined {
  return names
    .filter((name) => fileName.test(name))
    .toSorted((a, b) => majorVersion(b) - majorVersion(a) || a.length - b.length)[0];
}

function majorVersion(name: string): number {
  return Number(/\.so\.(\d+)/.exec(name)?.[1] ?? 0);
}

/** CUDA_HOME says which toolkit the user wants. */
function namedFolders(machine: FileProbe): string[] {
  const named = [machine.env['CUDA_HOME'], machine.env['CUDA_PATH']].filter(
    (path) => path !== undefined && path !== '',
  );
  return named.flatMap((folder) => libraryFolders(machine, folder as string));
}

function installedFolders(machine: FileProbe): string[] {
  return machine
    .list('/usr/local')
    .filter((entry) => /^cuda(-[\d.]+)?$/.test(entry))
    .flatMap((entry) => libraryFolders(machine, `/usr/local/${entry}`));
}

function libraryFolders(machine: FileProbe, toolkit: string): string[] {
  const triplet = machine.arch === 'arm64' ? 'sbsa-linux' : 'x86_64-linux';
  return [`${toolkit}/lib64`, `${toolkit}/targets/${triplet}/lib`, `${toolkit}/lib`];
}

/** Python packages bring them as nvidia/cuda_nvrtc/lib and nvidia/cublas/lib, from CUDA 13 on as nvidia/cu13/lib. */
function wheelFolders(machine: FileProbe): string[] {
  const { env } = machine;
  const pythons = (env['PATH'] ?? '').split(':').filter((folder) => machine.exists(`${folder}/python3`));
  const prefixes = [
    env['VIRTUAL_ENV'],
    env['CONDA_PREFIX'],
    ...pythons.map((folder) => folder.replace(/\/bin\/?$/, '')),
    '/usr/local',
    '/usr',
    env['HOME'] && `${env['HOME']}/.local`,
  ];
  return prefixes
    .filter((prefix) => prefix !== undefined && prefix !== '')
    .flatMap((prefix) =>
      machine
        .list(`${prefix}/lib`)
        .filter((entry) => entry.startsWith('python3'))
        .flatMap((python) =>
          ['site-packages', 'dist-packages'].map((kind) => `${prefix}/lib/${python}/${kind}/nvidia`),
        ),
    )
    .flatMap((folder) => machine.list(folder).map((entry) => `${folder}/${entry}/lib`));
}

/** The path of the first library whose file name matches; `folders` are looked at after those of the loader. */
export function findLibrary(machine: FileProbe, fileName: RegExp, folders: readonly string[] = []): string | undefined {
  const fromEnvironment = (machine.env['LD_LIBRARY_PATH'] ?? '').split(':').filter((folder) => folder !== '');
  return (
    inFolders(machine, fileName, fromEnvironment) ??
    inLoaderCache(machine, fileName) ??
    inFolders(machine, fileName, [...systemFolders(machine), ...folders])
  );
}

function inFolders(machine: FileProbe, fileName: RegExp, folders: readonly string[]): string | undefined {
  for (const folder of folders) {
    const found = machine.list(folder).find((name) => fileName.test(name));
    if (found !== undefined) return `${folder}/${found}`;
  }
  return undefined;
}

/** The cache of the loader holds names and paths as strings that end with a zero byte. */
function inLoaderCache(machine: FileProbe, fileName: RegExp): string | undefined {
  const cache = machine.readText('/etc/ld.so.cache') ?? '';
  return cache
    .split('\0')
    .filter((text) => text.startsWith('/') && fileName.test(text.slice(text.lastIndexOf('/') + 1)))
    .find((path) => machine.exists(path));
}

function systemFolders(machine: FileProbe): string[] {
  const triplet = machine.arch === 'arm64' ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu';
  return [`/lib/${triplet}`, `/usr/lib/${triplet}`, '/lib64', '/usr/lib64', '/lib', '/usr/lib', '/usr/local/lib'];
}
