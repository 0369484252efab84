// The screen of `weftline top` on a terminal: draws a page again and again, reads keys.
import type { ReadStream, WriteStream } from 'node:tty';
import { printableLines } from '../../core/quote.ts';

interface TopPage {
  readonly head: string;
  readonly columns: string;
  /** The one whose rows are sorted by is told in `head`. */
  readonly rows: readonly string[];
  readonly foot: readonly string[];
}

/** What a key asks for. */
export type TopAction = 'quit' | 'sort' | 'sort back' | 'up' | 'down' | 'help';

const ESCAPE = '\u001b[';
const ENTER_SCREEN = `${ESCAPE}?1049h${ESCAPE}?25l`;
const LEAVE_SCREEN = `${ESCAPE}?25h${ESCAPE}?1049l`;
const HOME = `${ESCAPE}H`;
const CLEAR_LINE = `${ESCAPE}K`;
const CLEAR_BELOW = `${ESCAPE}J`;

const keys: Readonly<Record<string, TopAction>> = {
  q: 'quit',
  '\u0003': 'quit',
  s: 'sort',
  [`${ESCAPE}C`]: 'sort',
  [`${ESCAPE}D`]: 'sort back',
  [`${ESCAPE}A`]: 'up',
  [`${ESCAPE}B`]: 'down',
  h: 'help',
  '?': 'help',
};

export const helpLines = [
  'q quits, h shows or hides this help',
  's and the right arrow sort by the next column, the left arrow by the one before',
  'the arrows up and down scroll the ranks',
] as const;

export class TopScreen implements Disposable {
  readonly #input: ReadStream;
  readonly #output: WriteStream;
  readonly #hasColour: boolean;
  readonly #onKey: (chunk: Buffer) => void;

  constructor(input: ReadStream, output: WriteStream, onAction: (action: TopAction) => void) {
    this.#input = input;
    this.#output = output;
    this.#hasColour = (process.env['NO_COLOR'] ?? '') === '';
    this.#onKey = (chunk) => {
      const action = keys[chunk.toString('latin1')];
      if (action !== undefined) onAction(action);
    };
    output.write(ENTER_SCREEN);
    input.setRawMode(true);
    input.resume();
    input.on('data', this.#onKey);
  }

  /** How many rows fit below a head and above a foot of so many lines. */
  room(footLines: number): number {
    return Math.max(1, this.#output.rows - 2 - footLines);
  }

  draw({ head, columns, rows, foot }: TopPage): void {
    const width = this.#output.columns;
    const shown = [head, this.#mark(columns.slice(0, width).padEnd(width)), ...rows, ...foot];
    const lines = shown.map((line, at) => (at === 1 ? line : printableLines(line).slice(0, width)) + CLEAR_LINE);
    this.#output.write(HOME + lines.slice(0, this.#output.rows).join('\r\n') + CLEAR_BELOW);
  }

  [Symbol.dispose](): void {
    this.#input.off('data', this.#onKey);
    this.#input.setRawMode(false);
    this.#input.pause();
    this.#output.write(LEAVE_SCREEN);
  }

  #mark(text: string): string {
    return this.#hasColour ? `${ESCAPE}7m${text}${ESCAPE}0m` : text;
  }
}
