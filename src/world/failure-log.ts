// The file in which ranks of a launcher note why they end, before others can suffer from it: its order is that of events.
// Other users may write to /dev/shm and see its names: the launcher makes the file in a folder that only its user may enter.
import { closeSync, constants, fstatSync, readSync, rmSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { inspect } from 'node:util';
import { blamedRanks, type ErrorCode, errorCodes, WeftlineError } from '../core/errors.ts';
import { makePrivateFolder, openGuarded } from '../core/guarded-file.ts';
import { printTo } from '../core/print.ts';
import { holdFile } from '../native/libc.ts';
import { heldFileOf, launcherFolderPrefix } from './shared-memory-files.ts';

/** What a rank notes. */
export interface FailureNote {
  readonly rank: number;
  /** Milliseconds since 1970. */
  readonly time: number;
  /** The ranks whose failure or absence caused this one. */
  readonly because: readonly number[];
  /** Absent if the rank ended with an exit code and no error. */
  readonly error?: NotedError;
  /** The code that the rank ends with, if it is known yet. */
  readonly exitCode?: number;
}

/** What an error of a rank says, as the launcher keeps and prints it. */
export interface NotedError {
  readonly code?: ErrorCode;
  readonly message: string;
}

/** A note is one write: notes of ranks that fail together do not mix. */
const MAX_MESSAGE_LENGTH = 2_000;
/** Bytes of a log that are read: as many notes as the ranks of the largest job make, at several KB each. */
const MAX_LOG_BYTES = 16 * 1024 * 1024;

/** The launcher's side of the log. Without /dev/shm, room in it, or locks, there is none: ranks then print their errors themselves. */
export class FailureLog implements Disposable {
  /** Path for the ranks; undefined if there is no log. */
  readonly path: string | undefined;
  #fd: number | undefined;

  constructor(jobPrefix: string) {
    try {
      this.path = heldFileOf(makePrivateFolder(launcherFolderPrefix(jobPrefix)));
      this.#fd = openGuarded(this.path, {
        owner: 'alone',
        flags: constants.O_RDWR | constants.O_CREAT | constants.O_EXCL,
      });
      // The next job would otherwise take the folder for that of a dead launcher.
      holdFile(this.#fd);
    } catch {
      this[Symbol.dispose]();
      this.path = undefined;
    }
  }

  /** The folder of the log, which dispose removes. */
  get folder(): string | undefined {
    return this.path === undefined ? undefined : dirname(this.path);
  }

  /** All notes, in the order in which they were made; none if no rank has noted anything. */
  read(): FailureNote[] {
    try {
      return this.#fd === undefined ? [] : readLines(this.#fd).flatMap(parseNote);
    } catch {
      return [];
    }
  }

  [Symbol.dispose](): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
    if (this.folder !== undefined) rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Adds a note to the log at this path and returns those before it; undefined if there is no log that only this user may write. */
export function noteFailure(path: string, note: FailureNote): FailureNote[] | undefined {
  const { error } = note;
  const brief = error === undefined ? note : { ...note, error: { ...error, message: cut(error.message) } };
  const line = JSON.stringify(brief);
  let fd: number | undefined;
  try {
    fd = openGuarded(path, { owner: 'alone', flags: constants.O_RDWR | constants.O_APPEND });
    writeSync(fd, `${line}\n`);
    const lines = readLines(fd);
    const at = lines.indexOf(line);
    return (at < 0 ? lines : lines.slice(0, at)).flatMap(parseNote);
  } catch {
    return undefined;
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}

function readLines(fd: number): string[] {
  const bytes = Buffer.alloc(Math.min(fstatSync(fd).size, MAX_LOG_BYTES));
  const length = readSync(fd, bytes, 0, bytes.byteLength, 0);
  return bytes.toString('utf8', 0, length).split('\n').slice(0, -1);
}

function cut(text: string): string {
  return text.length > MAX_MESSAGE_LENGTH ? `${text.slice(0, MAX_MESSAGE_LENGTH)}…` : text;
}

/** None for a line that no rank wrote. */
function parseNote(line: string): FailureNote[] {
  try {
    const { rank, time, because, error, exitCode } = JSON.parse(line) as Partial<FailureNote>;
    if (!isIndex(rank) || !isIndex(time) || !Array.isArray(because) || !because.every(isIndex)) return [];
    const known = parseError(error);
    return [
      {
        rank,
        time,
        because,
        ...(known === undefined ? {} : { error: known }),
        ...(isIndex(exitCode) ? { exitCode } : {}),
      },
    ];
  } catch {
    return [];
  }
}

function parseError(error: Partial<NotedError> | undefined): NotedError | undefined {
  if (typeof error?.message !== 'string') return undefined;
  const { code, message } = error;
  return code !== undefined && Object.hasOwn(errorCodes, code) ? { code, message } : { message };
}

function isIndex(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}

interface ReporterOptions {
  readonly rank: number;
  /** Path of the failure log. */
  readonly log: string;
}

/** Shared by all copies of this package in a process. */
const registered = Symbol.for('weftline.failureReporter');

/** The one of this process, made by the first call: from then on the process notes why it ends. */
export function reportFailures(options: ReporterOptions): FailureReporter {
  const holder = globalThis as { [registered]?: FailureReporter };
  return (holder[registered] ??= new FailureReporter(options));
}

export class FailureReporter {
  readonly #options: ReporterOptions;
  #lost: unknown;
  #noted = false;

  constructor(options: ReporterOptions) {
    this.#options = options;
    process.on('uncaughtExceptionMonitor', (error) => this.#uncaught(error));
    process.on('exit', (exitCode) => {
      if (exitCode !== 0 && !this.#noted) this.#note({ exitCode });
    });
  }

  /** Must be called when another rank was lost: what this process does from then on may follow from that. */
  peerLost(reason: unknown): void {
    this.#lost ??= reason;
  }

  /** Must be called before the other ranks hear of the error. Only the first one counts. */
  failed(error: unknown): void {
    if (!this.#noted) this.#note({ error });
  }

  #note({ error, exitCode }: { readonly error?: unknown; readonly exitCode?: number }): FailureNote[] | undefined {
    this.#noted = true;
    const { rank, log } = this.#options;
    const blamed = [...causes(error), this.#lost].flatMap((cause) => blamedRanks(cause));
    return noteFailure(log, {
      rank,
      time: Date.now(),
      because: [...new Set(blamed)].filter((other) => other !== rank),
      ...(error === undefined ? {} : { error: describe(error) }),
      ...(exitCode === undefined ? {} : { exitCode }),
    });
  }

  /** ORDER: before the process ends. One rank prints its stack, others at most a line; Node would print every stack. */
  #uncaught(error: unknown): void {
    if (process.listenerCount('uncaughtException') > 0 || process.hasUncaughtExceptionCaptureCallback()) return;
    const { rank } = this.#options;
    const others = this.#note({ error })?.filter((note) => note.rank !== rank);
    // No log would show it, so Node prints it.
    if (others === undefined) return;
    const own = describe(error);
    const isKnown = others.some((note) => note.error?.message === own.message && note.error.code === own.code);
    const isMinor = isConsequence(own) || others.some((note) => note.error !== undefined && !isConsequence(note.error));
    if (!isKnown) {
      const code = own.code === undefined ? '' : `${own.code}: `;
      // Node knows more of a foreign error, such as the line of a syntax error.
      if (!isMinor && !(error instanceof WeftlineError)) return;
      const text = error instanceof WeftlineError && !isMinor ? withStack(error) : code + own.message;
      printTo(process.stderr, `weftline: rank ${rank}: ${text}\n`);
    }
    process.exit(1);
  }
}

/** True for an error that began at another rank. */
function isConsequence({ code }: NotedError): boolean {
  return code === 'WL_PEER_LOST' || code === 'WL_PEER_FAILED';
}

function* causes(error: unknown): Generator {
  for (let cause = error, depth = 0; cause !== undefined && depth < 8; depth += 1) {
    yield cause;
    cause = cause instanceof Error ? cause.cause : undefined;
  }
}

function describe(error: unknown): NotedError {
  if (error instanceof WeftlineError) return { code: error.code, message: error.message };
  return { message: error instanceof Error ? `${error.name}: ${error.message}` : inspect(error) };
}

/** Text as Node shows an error that nobody caught, without Node's own frames. */
function withStack(error: WeftlineError): string {
  const frames = (error.stack ?? '').split('\n').filter((line) => isFrame(line) && !line.includes('node:internal/'));
  const because = [...causes(error.cause)].map((cause) => `  caused by ${describe(cause).message}`);
  return [`${error.code}: ${error.message}`, ...frames, ...because].join('\n');
}

function isFrame(line: string): boolean {
  return /^\s+at /.test(line);
}
