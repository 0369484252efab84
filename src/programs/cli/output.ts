// What a command says: lines on the way, a report at the end, the result document of --json, to a file or to stdout, and the
// page of --report.
import { accessSync, constants } from 'node:fs';
import { dirname } from 'node:path';
import { type Command, Option } from 'commander';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { writeOutput } from '../../core/guarded-file.ts';
import { escapedJson, printTo } from '../../core/print.ts';
import { pageHtml } from '../report/html/page-html.ts';
import { type View, viewPage, viewText } from '../report/view.ts';

export interface OutputFlags {
  readonly json?: string;
  readonly quiet?: boolean;
  readonly report?: string;
  /** The name that UCCL's programs have for it. */
  readonly logtostderr?: boolean;
}

const STDOUT = '-';

/** Adds --json and --quiet. */
export function addOutputOptions(command: Command): Command {
  return command
    .option('--json <file>', 'write the result document; - for stdout, with nothing else on it')
    .option('--quiet', 'print the result only, no lines on the way')
    .addOption(new Option('--logtostderr', 'print the lines on the way to stderr').hideHelp());
}

/** The same of commands that have a page to show, and --report. */
export function addReportOptions(command: Command): Command {
  return addOutputOptions(command).option(
    '--report <file>',
    'write a page with charts and tables (HTML, one file, for any browser)',
  );
}

export class Output {
  readonly #file: string | undefined;
  readonly #page: string | undefined;
  readonly #isQuiet: boolean;
  /** The stream of lines: with --json -, nothing but the document may be on stdout. */
  readonly #lines: NodeJS.WriteStream;

  /** Fails with WL_FILE if the folder of the result document or of the page cannot be written to. */
  constructor({ json, quiet = false, report, logtostderr = false }: OutputFlags) {
    if (json !== undefined && json !== STDOUT) requireWritableFolder(json);
    if (report !== undefined) requireWritableFolder(report);
    if (report !== undefined && report === json) {
      throw invalidArgument('--report', report, 'another file than that of --json');
    }
    this.#page = report;
    this.#file = json;
    this.#isQuiet = quiet;
    this.#lines = json === STDOUT || logtostderr ? process.stderr : process.stdout;
  }

  /** A line on the way. */
  readonly line = (text: string): void => {
    if (!this.#isQuiet) printTo(this.#lines, `${text}\n`);
  };

  /** A line of the result, as soon as it is known. */
  readonly result = (text: string): void => {
    if (!this.#isQuiet || this.#file !== STDOUT) printTo(this.#lines, `${text}\n`);
  };

  /** The end of the command; only a view has a page. Fails with WL_FILE if a file cannot be written. */
  report(shown: View | string, document: unknown): void {
    const isView = typeof shown === 'object';
    if (this.#file !== STDOUT) printTo(process.stdout, isView ? viewText(shown) : shown);
    // The figures first: a page that cannot be written must not lose them.
    if (this.#file !== undefined) {
      const json = escapedJson(`${JSON.stringify(document, sixDigits, 2)}\n`);
      if (this.#file === STDOUT) process.stdout.write(json);
      else writeOutputFile(this.#file, json);
    }
    if (this.#page !== undefined && isView) writeOutputFile(this.#page, pageHtml(viewPage(shown)));
  }
}

/** Fails with WL_FILE. */
export function requireWritableFolder(file: string): void {
  const folder = dirname(file);
  try {
    accessSync(folder, constants.W_OK);
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot write ${file}: the folder ${folder} is missing or not writable`, {
      details: { file, folder },
      cause,
    });
  }
}

/** Fails with WL_FILE. */
export function writeOutputFile(file: string, content: string | Uint8Array): void {
  try {
    writeOutput(file, content);
  } catch (cause) {
    const { message } = asWeftlineError(cause);
    throw new WeftlineError('WL_FILE', `Cannot write ${file}: ${message}`, { details: { file }, cause });
  }
}

/** More digits than these, and than those of the whole part, are noise. */
function sixDigits(_key: string, value: unknown): unknown {
  if (typeof value !== 'number' || Number.isInteger(value) || !Number.isFinite(value)) return value;
  return Math.abs(value) < 1e5 ? Number(value.toPrecision(6)) : Math.round(value * 10) / 10;
}
