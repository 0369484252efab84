// The programs that benchmarks compare with, where they are installed: iperf3, ucx_perftest, and loops over Open MPI.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import type { BenchedKind, CollectivesWorkload, SizePlan } from './collectives/collectives-workload.ts';

/** A server that a program runs; it ends by itself after its client. */
interface ProgramServer {
  readonly port: number;
  stop(): void;
}

interface Output {
  /** The text of stdout, and of stderr. */
  readonly out: string;
  readonly errors: string;
  /** undefined if the program could not be started, or was not done in time. */
  readonly code?: number | null;
  readonly error?: Error;
}

/** Runs a program to its end. */
function outputOf(program: string, words: readonly string[], signal?: AbortSignal): Promise<Output> {
  return new Promise((resolve) => {
    const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'pipe'], signal });
    const said = { out: '', errors: '' };
    child.stdout.on('data', (chunk: Buffer) => (said.out += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (said.errors += chunk.toString()));
    child.once('error', (error) => resolve({ ...said, error }));
    child.once('close', (code) => resolve({ ...said, code }));
  });
}

async function freePort(host: string): Promise<number> {
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address !== null ? address.port : 0;
}

// iperf3: what TCP reaches between the same two hosts in the same minute.

/** A server at that address alone; undefined if iperf3 is not installed. */
export async function startIperf(host: string): Promise<ProgramServer | undefined> {
  const port = await freePort(host);
  const child = spawn('iperf3', ['-s', '-1', '--forceflush', '-B', host, '-p', String(port)], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const isThere = await new Promise<boolean>((resolve) => {
    child.once('error', () => resolve(false));
    child.stdout.once('data', () => resolve(true));
    child.once('exit', () => resolve(false));
  });
  return isThere ? { port, stop: () => void child.kill() } : undefined;
}

/** Gbps that arrive with one TCP connection and writes of 1 MiB; undefined if iperf3 is missing or failed. */
export async function runIperf(host: string, port: number, seconds: number): Promise<number | undefined> {
  const { out } = await outputOf('iperf3', ['-c', host, '-p', String(port), '-l', '1M', '-t', String(seconds), '-J']);
  try {
    const { end } = JSON.parse(out) as { readonly end?: { readonly sum_received?: { bits_per_second?: number } } };
    const bits = end?.sum_received?.bits_per_second;
    return bits === undefined ? undefined : bits / 1e9;
  } catch {
    return undefined;
  }
}

// ucx_perftest: what UCX itself reaches between the same two hosts in the same minute.

export interface PerftestCase {
  readonly test: 'ucp_put_bw' | 'ucp_get' | 'tag_lat';
  readonly bytes: number;
  readonly iterations: number;
  /** Messages under way at a time. */
  readonly window: number;
}

const PROGRAM = 'ucx_perftest';
const WARM_ITERATIONS = 100;
const LONGEST_MS = 60_000;
/** The server listens soon after its start, and says so nowhere. */
const DIAL_PAUSE_MS = 100;
const DIAL_ATTEMPTS = 30;

/** One run of the server; undefined if ucx_perftest is not installed. */
export async function startPerftest(): Promise<ProgramServer | undefined> {
  const port = await freePort('127.0.0.1');
  const child = spawn(PROGRAM, ['-p', String(port)], { stdio: 'ignore', signal: AbortSignal.timeout(LONGEST_MS) });
  const isThere = await new Promise<boolean>((resolve) => {
    // A run that takes too long ends here too, later.
    child.on('error', () => resolve(false));
    child.once('spawn', () => resolve(true));
  });
  return isThere ? { port, stop: () => void child.kill() } : undefined;
}

/** Fails with WL_UNSUPPORTED if it is not installed here or failed. */
export async function runPerftest(host: string, port: number, what: PerftestCase) {
  const { test, bytes, iterations, window } = what;
  const counts = ['-n', String(iterations), '-w', String(WARM_ITERATIONS), '-O', String(window)];
  const words = [host, '-p', String(port), '-t', test, '-s', String(bytes), ...counts, '-f'];
  let said = '';
  for (let attempt = 0; attempt < DIAL_ATTEMPTS; attempt += 1) {
    await sleep(DIAL_PAUSE_MS);
    const { out, errors, error } = await outputOf(PROGRAM, words, AbortSignal.timeout(LONGEST_MS));
    if (error !== undefined && error.name !== 'AbortError') throw perftestMissing('this side');
    said = `${out}${error === undefined ? errors : `no result within ${LONGEST_MS} ms`}`;
    const result = parsePerftest(out, iterations);
    if (result !== undefined) return result;
    if (!/Connection refused/.test(said)) break;
  }
  throw new WeftlineError('WL_UNSUPPORTED', `${PROGRAM} failed: ${said.trim().split('\n').at(-1) ?? ''}`);
}

export function perftestMissing(side: string): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `The ceiling of ucx is ${PROGRAM}, which ${side} does not have: install it (Debian and Ubuntu: "apt-get install ucx-utils"), or leave out --compare`,
  );
}

/**
 * Microseconds a message, the median and over all of them; one way with tag_lat. The last line has the messages, then the
 * median, the average of the last second and the average of all.
 */
function parsePerftest(text: string, iterations: number) {
  const numbers = (text.trim().split('\n').at(-1) ?? '').trim().split(/\s+/).map(Number);
  const [count, typical, , overall = 0] = numbers;
  return count !== iterations || typical === undefined || !(overall > 0) ? undefined : { typical, overall };
}

// Open MPI: the same loops by its own collectives, built by mpicc for the run.

/** Fails with WL_UNSUPPORTED, telling what is missing. */
export function buildMpiLoop() {
  const version = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
  if (version.error !== undefined || version.status !== 0) throw mpiMissing('mpirun');
  const folder = mkdtempSync(join(tmpdir(), 'weftline-mpi-'));
  const source = fileURLToPath(packageFile('./collectives/mpi-loop.c', import.meta.url));
  const built = spawnSync('mpicc', ['-O2', source, '-o', join(folder, 'mpi-loop')], { encoding: 'utf8' });
  if (built.status !== 0) {
    rmSync(folder, { recursive: true });
    if (built.error !== undefined) throw mpiMissing('mpicc');
    throw new WeftlineError('WL_UNSUPPORTED', `Cannot compare with MPI: mpicc failed: ${built.stderr.trim()}`);
  }
  return {
    /** "mpirun (Open MPI) 4.1.4" */
    version: version.stdout.split('\n')[0]!,
    /** Resolves to the µs of the slowest rank, out of place and in place, in the order of `sizes`. Fails with WL_LAUNCH. */
    run: async (kind: BenchedKind, of: CollectivesWorkload, sizes: readonly SizePlan[]): Promise<number[][]> => {
      const asRoot = process.getuid?.() === 0 ? ['--allow-run-as-root'] : [];
      const program = [join(folder, 'mpi-loop'), kind, of.dtype, of.op];
      const list = sizes.map(({ bytes, warmup, iterations }) => `${bytes}:${warmup}:${iterations}`);
      const words = [...asRoot, '--oversubscribe', '-n', String(of.ranks), ...program, ...list];
      const { out, errors, code, error } = await outputOf('mpirun', words);
      const why = error?.message ?? (code === 0 ? undefined : `exit code ${code}: ${errors.trim()}`);
      if (why !== undefined) throw new WeftlineError('WL_LAUNCH', `Cannot run the loop over MPI: mpirun: ${why}`);
      const lines = out.trim().split('\n');
      return lines.map((line) => line.split(' ').slice(1).map(Number));
    },
    [Symbol.dispose]: (): void => rmSync(folder, { recursive: true, force: true }),
  };
}

function mpiMissing(program: string): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `Cannot compare with MPI: ${program} is not installed (Debian: openmpi-bin, libopenmpi-dev); leave --compare out`,
    { details: { program } },
  );
}
