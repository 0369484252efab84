// The machine that a result belongs to: versions, GPUs, load, and how fast it was before and after.
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';
import { stripVTControlCharacters } from 'node:util';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { driverVersionFile, parseDriverVersion } from '../../device/cuda/device-properties.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { startWorker } from '../../threads/start-worker.ts';
import { type BenchGroup, monotonicMicroseconds } from './harness.ts';

type Recorded<Head, Result> = Head & ReturnType<typeof runRecord> & Result;

/** A result document: `head`, what `run` results in, and what the machine was like before and after it. */
export function recordRun<Head extends object, Result extends object>(
  group: undefined,
  head: Head,
  run: () => Promise<Result>,
): Promise<Recorded<Head, Result>>;
/** Collective. The document is rank 0's; undefined elsewhere. */
export function recordRun<Head extends object, Result extends object>(
  group: MeasuredGroup,
  head: Head,
  run: () => Promise<Result>,
): Promise<Recorded<Head, Result> | undefined>;
export async function recordRun<Head extends object, Result extends object>(
  group: MeasuredGroup | undefined,
  head: Head,
  run: () => Promise<Result>,
): Promise<Recorded<Head, Result> | undefined> {
  const before = await sampleMachine(group);
  const result = await run();
  const after = await sampleMachine(group);
  if (before === undefined || after === undefined) return undefined;
  return { ...head, ...runRecord(before, after, group?.settings ?? readSettings()), ...result };
}

type MeasuredGroup = Pick<BenchGroup, 'rank' | 'barrier'> & { readonly settings?: Settings };
type MachineSample = NonNullable<Awaited<ReturnType<typeof sampleMachine>>>;

/** What every result document says of its run. */
function runRecord(before: MachineSample, after: MachineSample, settings: Settings) {
  return {
    date: new Date().toISOString(),
    machine: machineDocument(),
    settings,
    loadAverage: { before: before.load, after: after.load },
    placement: { before: before.placement, after: after.placement },
  };
}

/** Rank 0 alone takes it, while all others wait: two threads of one process measure the machine. */
async function sampleMachine(group: MeasuredGroup | undefined) {
  await group?.barrier('bench-quiet');
  const load = loadAverage();
  const sample = (group?.rank ?? 0) === 0 ? { load, placement: await samplePlacement() } : undefined;
  await group?.barrier('bench-sampled');
  return sample;
}

export type MachineDocument = ReturnType<typeof machineDocument>;

export function machineDocument() {
  const root = fileURLToPath(new URL('../../..', import.meta.url));
  const { version } = JSON.parse(readFileSync(`${root}package.json`, 'utf8')) as { readonly version: string };
  const commit = git(root, 'rev-parse', 'HEAD');
  return {
    platform: `${process.platform}-${process.arch}`,
    kernel: release(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: cpus().length,
    usableCores: availableParallelism(),
    memoryBytes: totalmem(),
    nodeVersion: process.versions.node,
    weftlineVersion: version,
    /** Commit of the checkout that the package runs from; undefined for an installed package. */
    commit,
    /** True when files of the checkout differ from the commit. */
    modified: commit === undefined ? undefined : git(root, 'status', '--porcelain', '--untracked-files=no') !== '',
  };
}

/** Average number of running processes over the last minute. */
export function loadAverage(): number {
  return loadavg()[0] as number;
}

/** undefined unless `root` itself is a checkout: a package under node_modules must not report its user's commit. */
function git(root: string, ...args: string[]): string | undefined {
  if (!existsSync(`${root}.git`)) return undefined;
  try {
    return execFileSync('git', ['-C', root, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}

export type GpuMachineDocument = Awaited<ReturnType<typeof gpuMachineDocument>>;

/** Collective; only rank 0 asks for driver and links. */
export async function gpuMachineDocument(world: BenchGroup, { properties }: CudaDevice) {
  const { name, multiprocessors, totalBytes, clockKiloHertz, capability, driverVersion } = properties;
  const gpu = { name, multiprocessors, totalBytes, clockKiloHertz, capability };
  const isFirst = world.rank === 0;
  return {
    /** The GPUs by rank. */
    gpus: await world.allGather('bench-gpus', gpu),
    /** "580.95.05"; undefined when the driver does not tell. */
    driver: isFirst ? readDriverVersion() : undefined,
    /** Newest CUDA that the driver runs, as "13.0". */
    cuda: `${Math.floor(driverVersion / 1000)}.${Math.floor((driverVersion % 1000) / 10)}`,
    /** Links between the GPUs of the host as nvidia-smi numbers and names them ("NV18"); undefined without nvidia-smi. */
    links: isFirst ? readLinks() : undefined,
  };
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

/**
 * Taken before and after a run. A virtual machine may move its processors between caches: the round trip then jumps
 * (about 100 ns to 400 ns was seen) and copies between cores follow it. Compare runs with similar values only.
 */
export type PlacementSample = Awaited<ReturnType<typeof samplePlacement>>;

/** The quickest run counts: the first ones warm up, and other threads may get in between. */
const RUNS = 5;
const ROUNDS_PER_RUN = 4_000;
const LIMIT_MICROSECONDS = 200_000;

export async function samplePlacement() {
  return {
    /** Time of a fixed arithmetic loop on one core; more means that something else used the core. */
    arithmeticMilliseconds: timeArithmetic(),
    /** One word to another thread and back; undefined when the two did not run at the same time. */
    coreRoundTripNanoseconds: await timeRoundTrip(),
  };
}

/** True when the two samples are so far apart that numbers of the run between them should not be trusted. */
export function placementChanged(before: PlacementSample, after: PlacementSample): boolean {
  const [first, second] = [before.coreRoundTripNanoseconds, after.coreRoundTripNanoseconds];
  return (
    apart(before.arithmeticMilliseconds, after.arithmeticMilliseconds) ||
    (first !== undefined && second !== undefined && apart(first, second))
  );
}

function apart(a: number, b: number): boolean {
  return Math.max(a, b) > 1.5 * Math.min(a, b);
}

function timeArithmetic(): number {
  let best = Infinity;
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const begin = monotonicMicroseconds();
    let word = 1;
    for (let step = 0; step < 5_000_000; step += 1) word = (Math.imul(word, 1_664_525) + 1_013_904_223) | 0;
    // The result is used, so that the loop is not removed.
    if (word === 0x7fff_ffff) best = Infinity;
    best = Math.min(best, monotonicMicroseconds() - begin);
  }
  return best / 1000;
}

const echo = `
  import { parentPort, workerData } from 'node:worker_threads';
  const words = new Int32Array(workerData);
  parentPort.postMessage('ready');
  for (let round = 1; round <= ${RUNS * ROUNDS_PER_RUN}; round += 1) {
    for (;;) {
      const seen = Atomics.load(words, 0);
      if (seen === -1) process.exit();
      if (seen === round) break;
    }
    Atomics.store(words, 32, round);
  }`;

async function timeRoundTrip(): Promise<number | undefined> {
  const buffer = new SharedArrayBuffer(256);
  const words = new Int32Array(buffer);
  const worker = startWorker(new URL(`data:text/javascript,${encodeURIComponent(echo)}`), {
    name: 'echo',
    workerData: buffer,
  });
  try {
    await once(worker, 'message');
    const deadline = monotonicMicroseconds() + LIMIT_MICROSECONDS;
    let best: number | undefined;
    for (let run = 0; run < RUNS; run += 1) {
      const microseconds = exchange(words, run * ROUNDS_PER_RUN, deadline);
      if (microseconds === undefined) break;
      best = Math.min(best ?? Infinity, (microseconds * 1000) / ROUNDS_PER_RUN);
    }
    return best;
  } finally {
    Atomics.store(words, 0, -1);
    await worker.terminate();
  }
}

/** Time of one run of rounds; undefined when the other thread did not answer in time. */
function exchange(words: Int32Array, first: number, deadline: number): number | undefined {
  const begin = monotonicMicroseconds();
  let spins = 0;
  for (let round = first + 1; round <= first + ROUNDS_PER_RUN; round += 1) {
    Atomics.store(words, 0, round);
    while (Atomics.load(words, 32) !== round) {
      spins += 1;
      if (spins % 4096 === 0 && monotonicMicroseconds() > deadline) return undefined;
    }
  }
  return monotonicMicroseconds() - begin;
}
