// The rank's side of the failure log: notes what ends this process, and prints it unless another rank has.
import { inspect } from 'node:util';
import { blamedRanks, WeftlineError } from '../core/errors.ts';
import { printTo } from '../core/print.ts';
import { type FailureNote, noteFailure, type NotedError } from './failure-log.ts';

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

  /** To be called when another rank was lost: what this process does from then on may follow from that. */
  peerLost(reason: unknown): void {
    this.#lost ??= reason;
  }

  /** To be called before the other ranks hear of the error. Only the first one counts. */
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

/** As Node shows an error that nobody caught, without Node's own frames. */
function withStack(error: WeftlineError): string {
  const frames = (error.stack ?? '').split('\n').filter((line) => isFrame(line) && !line.includes('node:internal/'));
  const because = [...causes(error.cause)].map((cause) => `  caused by ${describe(cause).message}`);
  return [`${error.code}: ${error.message}`, ...frames, ...because].join('\n');
}

function isFrame(line: string): boolean {
  return /^\s+at /.test(line);
}
