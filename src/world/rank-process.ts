// One rank as the launcher sees it: a process that leads its own group, so that what it started ends with it.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import type { Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from '../core/errors.ts';

// What ranks print, line by line: lines of different ranks never mix, a last line without an end counts.

/** A line that a rank printed. */
export interface OutputLine {
  readonly rank: number;
  readonly stream: 'stdout' | 'stderr';
  /** Text without the line's end. */
  readonly text: string;
}

/** Longer lines are cut in pieces, so that a rank that prints no line ends does not fill the memory. */
const MAX_LINE_BYTES = 1 << 20;
const NEWLINE = 0x0a;

/** Calls `take` for every line of the source; resolves at its end. `take` may return a promise to slow the source down. */
export async function eachLine(source: Readable, take: (line: Buffer) => Promise<void> | void): Promise<void> {
  let rest: Buffer[] = [];
  let restBytes = 0;
  const flush = async (piece: Buffer) => {
    const line = rest.length === 0 ? piece : Buffer.concat([...rest, piece]);
    rest = [];
    restBytes = 0;
    await take(line);
  };
  for await (const chunk of source as AsyncIterable<Buffer>) {
    let at = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, at)) {
      await flush(chunk.subarray(at, end));
      at = end + 1;
    }
    if (at < chunk.byteLength) {
      rest.push(chunk.subarray(at));
      restBytes += chunk.byteLength - at;
      if (restBytes > MAX_LINE_BYTES) await flush(Buffer.alloc(0));
    }
  }
  if (restBytes > 0) await flush(Buffer.alloc(0));
}

/** Writes whole lines of many ranks to one stream, as fast as it takes them; once it is broken, lines are dropped. */
export class LineWriter implements Disposable {
  readonly #stream: Writable;
  // A reader that went away, as in "| head", must not end the ranks.
  readonly #onError = () => (this.#broken = true);
  #drained: Promise<unknown> | undefined;
  #broken = false;

  constructor(stream: Writable) {
    this.#stream = stream;
    stream.on('error', this.#onError);
  }

  async write(prefix: string, line: Buffer): Promise<void> {
    // Asked again after each wait: many ranks wait for the same moment.
    while (this.#drained !== undefined) await this.#drained;
    if (this.#broken) return;
    if (this.#stream.write(Buffer.concat([Buffer.from(prefix), line, Buffer.from('\n')]))) return;
    this.#drained = once(this.#stream, 'drain').catch(() => {});
    await this.#drained;
    this.#drained = undefined;
  }

  [Symbol.dispose](): void {
    this.#stream.off('error', this.#onError);
  }
}

/** How the process of a rank ended. */
export interface RankResult {
  readonly rank: number;
  readonly pid: number;
  /** null if a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly durationMs: number;
  /** Milliseconds since 1970. */
  readonly endedAt: number;
  /** True if the launcher ended it because another rank failed, or on request. */
  readonly stopped: boolean;
}

interface RankProcessOptions {
  readonly rank: number;
  readonly command: readonly string[];
  readonly cwd: string | undefined;
  readonly env: NodeJS.ProcessEnv;
  /** True: the rank uses the launcher's own input and output. */
  readonly raw: boolean;
  /** Called as soon as the process is seen to have ended. */
  readonly onExit: (rank: number) => void;
}

export class RankProcess {
  readonly rank: number;
  readonly pid: number;
  /** Resolves when the process has ended and nothing of its group is left. */
  readonly ended: Promise<RankResult>;
  running = true;
  readonly #child: ChildProcess;
  #stopped = false;

  /** Fails with WL_LAUNCH if the command cannot be started. */
  static async start(options: RankProcessOptions): Promise<RankProcess> {
    const [file = '', ...args] = options.command;
    const output = options.raw ? 'inherit' : 'pipe';
    const child = spawn(file, args, {
      env: options.env,
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      stdio: [options.raw ? 'inherit' : 'ignore', output, output],
      detached: true,
    });
    const started = performance.now();
    if (child.pid === undefined) {
      const cause = await new Promise<Error>((resolve) => child.once('error', resolve));
      throw new WeftlineError('WL_LAUNCH', `Cannot start ${file} for rank ${options.rank}: ${cause.message}`, {
        details: { rank: options.rank, command: options.command },
        cause,
      });
    }
    return new RankProcess(options, child, started);
  }

  private constructor({ rank, onExit }: RankProcessOptions, child: ChildProcess, started: number) {
    this.rank = rank;
    this.#child = child;
    this.pid = child.pid ?? 0;
    child.on('error', () => {});
    this.ended = new Promise((resolve) => {
      child.once('exit', (exitCode, signal) => {
        this.running = false;
        onExit(rank);
        // The group is killed at once, while no other process can have taken the number: what the rank started and left behind.
        this.signalGroup('SIGKILL');
        const durationMs = performance.now() - started;
        const endedAt = Date.now();
        void this.#groupGone().then(() =>
          resolve({ rank, pid: this.pid, exitCode, signal, durationMs, endedAt, stopped: this.#stopped }),
        );
      });
    });
  }

  /** Asks the rank to end; its result then says that it was stopped. */
  stop(signal: NodeJS.Signals): void {
    if (!this.running) return;
    this.#stopped = true;
    this.signalGroup(signal);
  }

  /** Reads until the pipes end, or closePipes(), after which the error of a pipe is of no interest. Never fails. */
  async readLines(take: (stream: OutputLine['stream'], line: Buffer) => Promise<void> | void): Promise<void> {
    const { stdout, stderr } = this.#child;
    const read = async (stream: OutputLine['stream'], source: Readable | null): Promise<void> => {
      if (source !== null) await eachLine(source, (line) => take(stream, line)).catch(() => {});
    };
    await Promise.all([read('stdout', stdout), read('stderr', stderr)]);
  }

  /** The rest of the output is lost. */
  closePipes(): void {
    this.#child.stdout?.destroy();
    this.#child.stderr?.destroy();
  }

  signalGroup(signal: NodeJS.Signals | 0): boolean {
    try {
      process.kill(-this.pid, signal);
      return true;
    } catch {
      return false;
    }
  }

  /** Killed processes take a moment; a zombie that its parent does not collect is not waited for. */
  async #groupGone(): Promise<void> {
    for (let pause = 1; pause < 200 && this.signalGroup(0); pause *= 2) await sleep(pause);
  }
}

/** A shell's way to say how a process ended: its exit code, or 128 and the signal's number. */
export function exitCodeOf({ exitCode, signal }: Pick<RankResult, 'exitCode' | 'signal'>): number {
  if (signal !== null) return 128 + (Object.entries(constants.signals).find(([name]) => name === signal)?.[1] ?? 0);
  return exitCode ?? 1;
}

/** "exit code 3", "signal SIGKILL". */
export function describeEnd({ exitCode, signal }: Pick<RankResult, 'exitCode' | 'signal'>): string {
  return signal === null ? `exit code ${exitCode ?? 1}` : `signal ${signal}`;
}
