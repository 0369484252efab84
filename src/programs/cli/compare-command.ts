// weftline compare: two result documents of the same command, figure by figure, the means, what differed besides, and what changed most.
import type { Command } from 'commander';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { readInput } from '../../core/guarded-file.ts';
import { compareResults, type Comparison, type ComparedFigure } from '../compare/compare-results.ts';
import { decimalArgument } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { printable } from '../../core/quote.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import { ranges, table, type View, fixed } from '../report/view.ts';

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

// What people read of it.

/** The table takes time by the square of its rows. */
const TABLE_FIGURES = 500;
/** A chart has so many figures, and its table all. */
const SHOWN_FIGURES = 60;
/** Names that are shown of those that only one document has. */
const SHOWN_NAMES = 5;

export function compareView(files: readonly [string, string], comparison: Comparison): View {
  const { figures, mean, referenceMean } = comparison;
  const rest = figures.length - TABLE_FIGURES;
  return {
    title: 'Two results compared',
    heading: [`A: ${files[0]}`, `B: ${files[1]}`],
    parts: [
      table(figures.slice(0, TABLE_FIGURES), [
        { head: 'figure', of: ({ name }) => printable(name, 200) },
        { head: 'unit', of: ({ unit }) => printable(unit) },
        { head: 'A', of: ({ first }) => first, show: digits },
        { head: 'B', of: ({ second }) => second, show: digits },
        { head: 'B to A', of: ({ ratio }) => ratio, show: fixed(3) },
        { head: '', of: (of) => (of.hasSpread ? `(${of.low.toFixed(2)} to ${of.high.toFixed(2)})` : undefined) },
        { head: '', of: compareVerdict },
      ]),
      rest > 0 && `and ${rest} figures more, which --json and --report have`,
      'B to A: how many times as fast or as much, above 1 is better. In brackets what the quartiles of both allow; better and',
      'worse: also at their edge. Beside: measured beside weftline (copies, peers), which tells whether the machine was the same.',
      section(
        'B to A',
        figures.filter(({ isReference }) => !isReference),
      ),
      section(
        'What was measured beside',
        figures.filter(({ isReference }) => isReference),
      ),
    ],
    footing: [
      ...(mean === undefined ? [] : [`geometric mean of B to A: ${mean.toFixed(3)}`]),
      ...(referenceMean === undefined ? [] : [`of what was measured beside it: ${referenceMean.toFixed(3)}`]),
      ...comparison.differences.map((difference) => `differs: ${printable(difference, 200)}`),
      ...onlyLine('A', comparison.onlyFirst),
      ...onlyLine('B', comparison.onlySecond),
    ],
  };
}

/** "better" or "worse" if no value within the quartiles says otherwise. */
export function compareVerdict({ low, high, hasSpread, isReference }: ComparedFigure): string {
  if (isReference) return 'beside';
  if (!hasSpread) return '';
  if (low > 1) return 'better';
  return high < 1 ? 'worse' : 'alike';
}

function section(title: string, figures: readonly ComparedFigure[]): ReportSection | false {
  if (figures.length === 0) return false;
  const changed = figures.toSorted((a, b) => Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
  const shown = new Set(changed.slice(0, SHOWN_FIGURES));
  const left = figures.length - shown.size;
  return ranges(
    {
      title,
      note: `How many times as fast or as much, above 1 is better; bars are what the quartiles of both allow.${left > 0 ? ` The ${shown.size} that changed most.` : ''}`,
      unit: 'B to A',
      rules: [{ value: 1, label: 'same' }],
    },
    figures
      .filter((figure) => shown.has(figure))
      .map(({ name, low, ratio, high, hasSpread }) => ({
        name,
        low: hasSpread ? low : ratio,
        middle: ratio,
        high: hasSpread && Number.isFinite(high) ? high : ratio,
      })),
    {
      head: ['figure', 'unit', 'A', 'B', 'B to A', 'from', 'to', ''],
      rows: figures.map((figure) => {
        const { name, unit, first, second, ratio, low, high, hasSpread } = figure;
        return [name, unit, first, second, ratio, hasSpread ? low : '', hasSpread ? high : '', compareVerdict(figure)];
      }),
    },
  );
}

function onlyLine(file: string, names: readonly string[]): string[] {
  if (names.length === 0) return [];
  const shown = names.slice(0, SHOWN_NAMES).map((name) => printable(name));
  const rest = names.length - shown.length;
  return [`only in ${file}: ${shown.join('; ')}${rest > 0 ? ` and ${rest} more` : ''}`];
}

function digits(value: number): string {
  return value >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}
