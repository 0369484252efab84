// ucx_perftest, where it is installed: what UCX itself reaches between the same two hosts in the same minute.
import { type ChildProcess, spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from '../../../core/errors.ts';
import { freePort } from '../transport/iperf.ts';

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
      // Also of a run that takes too long, later.
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
