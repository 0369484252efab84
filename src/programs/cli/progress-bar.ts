// How far a long command is, on a terminal: one bar on stderr that goes when the result comes.
import { SingleBar } from 'cli-progress';

interface ProgressOptions {
  /** "bench ep". */
  readonly title: string;
  /** What is counted: "rounds". */
  readonly unit: string;
  /** Only rank 0 shows how far all are. */
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

  /** So much is done of so much. Shows nothing where stderr is no terminal. */
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
