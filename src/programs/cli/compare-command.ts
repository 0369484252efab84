// weftline compare: two result documents of the same command, figure by figure.
import type { Command } from 'commander';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { readInput } from '../../core/guarded-file.ts';
import { compareResults, type Comparison } from '../compare/compare-results.ts';
import { compareView } from '../report/compare-view.ts';
import { decimalArgument } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';

const MAX_LEVELS = 64;

interface CompareFlags extends OutputFlags {
  readonly failBelow?: number;
}

export function addCompareCommand(program: Command): void {
  const command = program
    .command('compare')
    .summary('compare two result documents')
    .description(
      'Compares what --json of the same command wrote twice: each time and rate with the ratio of the second to the first ' +
        'and its spread. Compare runs of one machine, taken in turn.',
    )
    .argument('<first>', 'a result document')
    .argument('<second>', 'another one of the same command')
    .option(
      '--fail-below <ratio>',
      'exit non-zero if a figure of the second is less than so many times as good, as 0.95',
      decimalArgument(0, 1000),
    );
  addReportOptions(command);
  command.action((first: string, second: string, flags: CompareFlags) => {
    const output = new Output(flags);
    const comparison = compareResults(readDocument(first), readDocument(second));
    const files = [first, second] as const;
    output.report(compareView(files, comparison), { files, ...comparison });
    if (flags.failBelow !== undefined) requireRatio(comparison, flags.failBelow);
  });
}

/** Fails with WL_CHECK. What was measured beside weftline does not count. */
function requireRatio({ figures }: Comparison, least: number): void {
  const worse = figures.filter(({ ratio, isReference }) => !isReference && ratio < least);
  if (worse.length === 0) return;
  const [worst] = worse.toSorted((a, b) => a.ratio - b.ratio);
  throw new WeftlineError(
    'WL_CHECK',
    `${worse.length} of ${figures.length} figures are below ${least} of the first; the worst, "${worst!.name}", is ${worst!.ratio.toFixed(3)} of it`,
    { details: { least, ratio: worst!.ratio, figure: worst!.name } },
  );
}

/** Fails with WL_FILE, WL_FILE_FORMAT. */
function readDocument(file: string): Readonly<Record<string, unknown>> {
  let text: string;
  try {
    text = readInput(file).toString('utf8');
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot read ${file}: ${asWeftlineError(cause).message}`, {
      details: { file },
      cause,
    });
  }
  try {
    const document: unknown = JSON.parse(text);
    if (typeof document === 'object' && document !== null && !Array.isArray(document) && isShallow(document)) {
      return document as Readonly<Record<string, unknown>>;
    }
  } catch {
    // Said below.
  }
  throw new WeftlineError('WL_FILE_FORMAT', `${file} is no result document: expected what --json wrote`, {
    details: { file },
  });
}

/** What a command wrote has a few levels; those of a file that none wrote may be more than a stack holds. */
function isShallow(value: object, levels = MAX_LEVELS): boolean {
  if (levels === 0) return false;
  return Object.values(value).every((one) => typeof one !== 'object' || one === null || isShallow(one, levels - 1));
}
