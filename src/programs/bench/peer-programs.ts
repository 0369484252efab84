// The programs that benchmarks compare with, where they are installed: iperf3, ucx_perftest, and loops over Open MPI.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from '../../core/errors.ts';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { packageFile } from '../../core/package-file.ts';
import type { BenchedKind, CollectivesWorkload, SizePlan } from './collectives/collectives-workload.ts';

/** One run of the server, which ends by itself after its client. */
export class IperfServer {
  readonly port: number;
  readonly #child: ChildProcess;

  /** Listens at that address alone. undefined if iperf3 is not installed. */
  static async start(host: string): Promise<IperfServer | undefined> {
    const port = await freePort(host);
    const child = spawn('iperf3', ['-s', '-1', '--forceflush', '-B', host, '-p', String(port)], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    const isThere = await new Promise<boolean>((resolve) => {
      child.once('error', () => resolve(false));
      child.stdout.once('data', () => resolve(true));
      child.once('exit', () => resolve(false));
    });
    return isThere ? new IperfServer(child, port) : undefined;
  }

  private constructor(child: ChildProcess, port: number) {
    this.#child = child;
    this.port = port;
  }

  stop(): void {
    this.#child.kill();
  }
}

/** Gbps that arrive with one TCP connection and writes of 1 MiB; undefined if iperf3 is missing or failed. */
export function runIperf(host: string, port: number, seconds: number): Promise<number | undefined> {
  const words = ['-c', host, '-p', String(port), '-l', '1M', '-t', String(seconds), '-J'];
  return new Promise((resolve) => {
    const child = spawn('iperf3', words, { stdio: ['ignore', 'pipe', 'ignore'] });
    let text = '';
    child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()));
    child.once('error', () => resolve(undefined));
    child.once('close', () => resolve(received(text)));
  });
}

function received(text: string): number | undefined {
  try {
    const document = JSON.parse(text) as {
      readonly end?: { readonly sum_received?: { readonly bits_per_second?: number } };
    };
    const bits = document.end?.sum_received?.bits_per_second;
    return bits === undefined ? undefined : bits / 1e9;
  } catch {
    return undefined;
  }
}

function freePort(host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, host, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}

// ucx_perftest: what UCX itself reaches between the same two hosts in the same minute.

export interface PerftestCase {
  readonly test: 'ucp_put_bw' | 'ucp_get' | 'tag_lat';
  readonly bytes: number;
  readonly iterations: number;
  /** Messages under way at a time. */
  readonly window: number;
}

export interface PerftestResult {
  /** Microseconds a message: the median, and over all of them. Of tag_lat, one way. */
  readonly typical: number;
  readonly overall: number;
}

const PROGRAM = 'ucx_perftest';
const WARM_ITERATIONS = 100;
const LONGEST_MS = 60_000;
/** The server listens soon after its start, and says so nowhere. */
const DIAL_PAUSE_MS = 100;
const DIAL_ATTEMPTS = 30;

/** One run of the server, which ends by itself after its client. */
export class PerftestServer {
  readonly port: number;
  readonly #child: ChildProcess;

  /** undefined if ucx_perftest is not installed. */
  static async start(): Promise<PerftestServer | undefined> {
    const port = await freePort('127.0.0.1');
    const child = spawn(PROGRAM, ['-p', String(port)], { stdio: 'ignore', signal: AbortSignal.timeout(LONGEST_MS) });
    const isThere = await new Promise<boolean>((resolve) => {
      // A run that takes too long ends here too, later.
      child.on('error', () => resolve(false));
      child.once('spawn', () => resolve(true));
    });
    return isThere ? new PerftestServer(port, child) : undefined;
  }

  private constructor(port: number, child: ChildProcess) {
    this.port = port;
    this.#child = child;
  }

  stop(): void {
    this.#child.kill();
  }
}

/** Fails with WL_UNSUPPORTED if it is not installed here or failed. */
export async function runPerftest(host: string, port: number, what: PerftestCase): Promise<PerftestResult> {
  const { test, bytes, iterations, window } = what;
  const counts = ['-n', String(iterations), '-w', String(WARM_ITERATIONS), '-O', String(window)];
  const words = [host, '-p', String(port), '-t', test, '-s', String(bytes), ...counts, '-f'];
  let said = '';
  for (let attempt = 0; attempt < DIAL_ATTEMPTS; attempt += 1) {
    await sleep(DIAL_PAUSE_MS);
    said = await output(words);
    const result = parse(said, iterations);
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

function output(words: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const signal = AbortSignal.timeout(LONGEST_MS);
    const child = spawn(PROGRAM, words, { stdio: ['ignore', 'pipe', 'pipe'], signal });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (text += chunk.toString()));
    child.once('error', ({ name }) => {
      if (name === 'AbortError') text += `no result within ${LONGEST_MS} ms`;
      else reject(perftestMissing('this side'));
    });
    child.once('close', () => resolve(text));
  });
}

/** The last line: messages, then microseconds a message: median, average of the last second, average of all. */
function parse(text: string, iterations: number): PerftestResult | undefined {
  const numbers = (text.trim().split('\n').at(-1) ?? '').trim().split(/\s+/).map(Number);
  const [count, typical, , overall] = numbers;
  if (count !== iterations || typical === undefined || !((overall ?? 0) > 0)) return undefined;
  return { typical, overall: overall as number };
}

// Open MPI: the same loops by its own collectives, built by mpicc for the run.

export class MpiLoop implements Disposable {
  /** "mpirun (Open MPI) 4.1.4" */
  readonly version: string;
  readonly #folder: string;

  /** Fails with WL_UNSUPPORTED, telling what is missing. */
  static build(): MpiLoop {
    const version = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
    if (version.error !== undefined || version.status !== 0) throw missing('mpirun');
    const folder = mkdtempSync(join(tmpdir(), 'weftline-mpi-'));
    const source = fileURLToPath(packageFile('./collectives/mpi-loop.c', import.meta.url));
    const built = spawnSync('mpicc', ['-O2', source, '-o', join(folder, 'mpi-loop')], { encoding: 'utf8' });
    if (built.status === 0) return new MpiLoop(folder, version.stdout.split('\n')[0]!);
    rmSync(folder, { recursive: true });
    if (built.error !== undefined) throw missing('mpicc');
    throw new WeftlineError('WL_UNSUPPORTED', `Cannot compare with MPI: mpicc failed: ${built.stderr.trim()}`);
  }

  private constructor(folder: string, version: string) {
    this.#folder = folder;
    this.version = version;
  }

  /** Resolves to the µs of the slowest rank, out of place and in place, in the order of `sizes`. Fails with WL_LAUNCH. */
  run(kind: BenchedKind, { ranks, dtype, op }: CollectivesWorkload, sizes: readonly SizePlan[]): Promise<number[][]> {
    const asRoot = process.getuid?.() === 0 ? ['--allow-run-as-root'] : [];
    const program = [join(this.#folder, 'mpi-loop'), kind, dtype, op];
    const list = sizes.map(({ bytes, warmup, iterations }) => `${bytes}:${warmup}:${iterations}`);
    const words = [...asRoot, '--oversubscribe', '-n', String(ranks), ...program, ...list];
    return new Promise((resolve, reject) => {
      const child = spawn('mpirun', words, { stdio: ['ignore', 'pipe', 'pipe'] });
      const texts = { out: '', errors: '' };
      child.stdout.on('data', (chunk: Buffer) => (texts.out += chunk.toString()));
      child.stderr.on('data', (chunk: Buffer) => (texts.errors += chunk.toString()));
      child.once('error', (cause) => reject(failed(cause.message)));
      child.once('close', (code) => {
        if (code !== 0) return reject(failed(`exit code ${code}: ${texts.errors.trim()}`));
        return resolve(
          texts.out
            .trim()
            .split('\n')
            .map((line) => line.split(' ').slice(1).map(Number)),
        );
      });
    });
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function missing(program: string): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `Cannot compare with MPI: ${program} is not installed (Debian: openmpi-bin, libopenmpi-dev); leave --compare out`,
    { details: { program } },
  );
}

function failed(why: string): WeftlineError {
  return new WeftlineError('WL_LAUNCH', `Cannot run the loop over MPI: mpirun: ${why}`);
}
