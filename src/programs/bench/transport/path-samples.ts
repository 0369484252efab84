// What the paths of a connection have sent, second by second, while a bench runs.
import type { Connection } from '../../../transport/index.ts';
import { monotonicMicroseconds } from '../harness.ts';
import type { PathsAt } from './transport-results.ts';

export class PathSamples {
  readonly #connection: Connection;
  readonly #begin: number = monotonicMicroseconds();
  readonly #asked: Promise<PathsAt>[] = [];

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Asks the engines, which answer between their packets; does not wait for them. */
  readonly take = (): void => {
    this.#asked.push(this.#ask());
  };

  /** Fails with what the connection failed with. */
  all(): Promise<readonly PathsAt[]> {
    return Promise.all(this.#asked);
  }

  async #ask(): Promise<PathsAt> {
    const { paths } = (await this.#connection.statistics()).connection;
    return {
      seconds: (monotonicMicroseconds() - this.#begin) / 1e6,
      paths: paths.map(({ sentSegments, lostSegments, smoothedRtt }) => ({ sentSegments, lostSegments, smoothedRtt })),
    };
  }
}
