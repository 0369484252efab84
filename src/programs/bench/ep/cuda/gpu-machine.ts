// The GPUs that a result belongs to, their driver, and how they are linked.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { stripVTControlCharacters } from 'node:util';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { driverVersionFile, parseDriverVersion } from '../../../../device/cuda/driver-version.ts';
import type { World } from '../../../../world/index.ts';

export interface GpuDocument {
  readonly name: string;
  readonly multiprocessors: number;
  readonly totalBytes: number;
  readonly clockKiloHertz: number;
  readonly capability: { readonly major: number; readonly minor: number };
}

export interface GpuMachineDocument {
  /** By rank. */
  readonly gpus: readonly GpuDocument[];
  /** As "580.95.05"; undefined when the driver does not tell. */
  readonly driver: string | undefined;
  /** Newest CUDA that the driver runs, as "13.0". */
  readonly cuda: string;
  /** Links between the GPUs of the host as nvidia-smi numbers and names them ("NV18"); undefined without nvidia-smi. */
  readonly links: readonly (readonly string[])[] | undefined;
}

/** Collective; only rank 0 asks for driver and links. */
export async function gpuMachineDocument(
  world: World,
  { properties }: CudaDevice,
): Promise<GpuMachineDocument | undefined> {
  const { name, multiprocessors, totalBytes, clockKiloHertz, capability, driverVersion } = properties;
  const gpu: GpuDocument = { name, multiprocessors, totalBytes, clockKiloHertz, capability };
  const gpus = await world.allGather('bench-gpus', gpu);
  if (world.rank !== 0) return undefined;
  const cuda = `${Math.floor(driverVersion / 1000)}.${Math.floor((driverVersion % 1000) / 10)}`;
  return { gpus, driver: readDriverVersion(), cuda, links: readLinks() };
}

function readDriverVersion(): string | undefined {
  try {
    return parseDriverVersion(readFileSync(driverVersionFile, 'utf8'));
  } catch {
    return undefined;
  }
}

function readLinks(): string[][] | undefined {
  try {
    const text = execFileSync('nvidia-smi', ['topo', '-m'], {
      encoding: 'utf8',
      timeout: 10_000,
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return parseLinks(text);
  } catch {
    return undefined;
  }
}

/** What connects two GPUs in the words of nvidia-smi; a row of its matrix has one behind its name. */
const link = /^(?:X|NV\d+|SYS|NODE|PHB|PXB|PIX)$/;

/** The GPUs' square of what `nvidia-smi topo -m` prints; undefined when it prints none. */
export function parseLinks(text: string): string[][] | undefined {
  // Headings are underlined even when nobody looks.
  const rows = stripVTControlCharacters(text)
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([name = '', first = '']) => /^GPU\d+$/.test(name) && link.test(first));
  return rows.length === 0 ? undefined : rows.map((row) => row.slice(1, 1 + rows.length));
}
