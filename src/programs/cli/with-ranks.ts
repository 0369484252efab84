// Commands that run on several ranks: the first call starts copies of the same command line, a copy joins and works.
import { WeftlineError } from '../../core/errors.ts';
import { printTo } from '../../core/print.ts';
import { isRank, readEnvironment } from '../../world/environment.ts';
import { launch } from '../../world/launcher.ts';
import { join, type World } from '../../world/world.ts';
import { printError } from './exit-codes.ts';
import { SingleBar } from 'cli-progress';

/**
 * Not yet launched: starts `ranks` copies of this command line, rank 0 with this terminal, and sets process.exitCode.
 * Already a rank, of any launcher: joins, runs `main`, closes. An error of `main` is printed and told to the other ranks,
 * and sets process.exitCode; an error that began at another rank of our launcher is left for that rank to print.
 */
export async function withRanks(ranks: number, main: (world: World) => Promise<void>): Promise<void> {
  if (ranks > 1 && !isRank()) {
    const command = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
    const { exitCode } = await launch({
      command,
      ranks,
      rawRank: 0,
      // A rank that knows why it failed has printed it.
      onSummary: (text, { error }) => {
        if (error === undefined) printTo(process.stderr, `weftline: ${text}\n`);
      },
    });
    process.exitCode = exitCode;
    return;
  }
  const world = await join();
  try {
    await main(world);
  } catch (error) {
    // ORDER: printed first; once the others know and end, the launcher gives this rank only a moment.
    process.exitCode = isPrintedElsewhere(error, world.rank) ? 1 : printError(error);
    await world.close(error);
    return;
  }
  await world.close();
}

/** A rank that was lost cannot print why, so those who miss it say so. */
function isPrintedElsewhere(error: unknown, rank: number): boolean {
  if (readEnvironment().source !== 'weftline' || !(error instanceof WeftlineError)) return false;
  return error.rank !== undefined && error.rank !== rank && error.code !== 'WL_PEER_LOST';
}

// How far a long command is, on a terminal: one bar on stderr that goes when the result comes.

interface ProgressOptions {
  /** "bench ep". */
  readonly title: string;
  /** What is counted: "rounds". */
  readonly unit: string;
  /** The rank of this process: rank 0 alone shows how far all are. */
  readonly rank: number;
  readonly isQuiet: boolean;
  /** stderr by default. */
  readonly stream?: NodeJS.WritableStream & { readonly isTTY?: boolean };
}

export class ProgressBar implements Disposable {
  readonly #options: ProgressOptions;
  readonly #stream: NonNullable<ProgressOptions['stream']>;
  #bar: SingleBar | undefined;

  constructor(options: ProgressOptions) {
    this.#options = options;
    this.#stream = options.stream ?? process.stderr;
  }

  /** Shows that `done` of `total` is done; nothing where stderr is no terminal. */
  readonly show = (done: number, total: number): void => {
    const { title, unit, rank, isQuiet } = this.#options;
    if (rank !== 0 || isQuiet || this.#stream.isTTY !== true) return;
    if (this.#bar === undefined) {
      this.#bar = new SingleBar({
        format: `${title} [{bar}] {value} of {total} ${unit}, {eta_formatted} left`,
        stream: this.#stream,
        clearOnComplete: true,
        hideCursor: true,
      });
      this.#bar.start(total, done);
    }
    this.#bar.update(done);
  };

  [Symbol.dispose](): void {
    this.#bar?.stop();
  }
}
