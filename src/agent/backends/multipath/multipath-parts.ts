// Puts of many ranges, each posted with one command: the engine's thread reads the table.
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { Connection, RangesPart, SharedRangesNames } from '../../../transport/index.ts';
import type { SharedParts } from '../../backend.ts';

/** What they need of their channel. */
export interface PartsChannel {
  putRanges(part: RangesPart): boolean;
}

export interface MultipathPartsOptions {
  readonly channel: PartsChannel;
  readonly connection: Connection;
  readonly way: Pick<RangesPart, 'flow' | 'staysHome'>;
  readonly ranges: SharedRangesNames;
}

export class MultipathParts implements SharedParts {
  readonly #channel: PartsChannel;
  readonly #connection: Connection;
  readonly #length: number;
  /** What is posted. One object, so that nothing is made per post. */
  readonly #part: { -readonly [K in keyof RangesPart]: RangesPart[K] };
  #isReleased = false;

  constructor({ channel, connection, way, ranges }: MultipathPartsOptions) {
    this.#channel = channel;
    this.#connection = connection;
    this.#length = ranges.table.count;
    this.#part = { ranges, first: 0, count: 0, ...way };
  }

  put(first: number, count: number): boolean {
    const length = this.#length;
    if (!(Number.isInteger(first) && first >= 0 && first <= length)) {
      throw invalidArgument('first', first, `a number of a part, up to ${length}`);
    }
    if (!(Number.isInteger(count) && count >= 0 && count <= length - first)) {
      throw invalidArgument('count', count, `up to ${length - first}, which the table has from part ${first} on`);
    }
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The table of parts was released');
    const part = this.#part;
    part.first = first;
    part.count = count;
    return this.#channel.putRanges(part);
  }

  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    if (this.#connection.error === undefined) await this.#connection.unshareRanges(this.#part.ranges);
  }
}
