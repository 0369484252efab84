// What ranks print, line by line: lines of different ranks never mix, a last line without an end counts.
import { once } from 'node:events';
import type { Readable, Writable } from 'node:stream';

/** A line that a rank printed. */
export interface OutputLine {
  readonly rank: number;
  readonly stream: 'stdout' | 'stderr';
  /** Without the line's end. */
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
