// What `weftline compare` prints: a line for each figure, the means, and what differed besides.
import Table from 'cli-table3';
import { printable } from '../../core/quote.ts';
import type { ComparedFigure, Comparison } from '../compare/compare-results.ts';
import { plainTable } from './plain-table.ts';

/** The table takes time by the square of its rows. */
const SHOWN_FIGURES = 500;
/** Of names that only one document has. */
const SHOWN_NAMES = 5;

export function compareReport(files: readonly [string, string], comparison: Comparison): string {
  const table = new Table({
    head: ['figure', 'unit', 'A', 'B', 'B to A', '', ''],
    colAligns: ['left', 'left', 'right', 'right', 'right', 'left', 'left'],
    ...plainTable,
  });
  for (const figure of comparison.figures.slice(0, SHOWN_FIGURES)) table.push(row(figure));
  const rest = comparison.figures.length - SHOWN_FIGURES;
  return [
    `A: ${files[0]}`,
    `B: ${files[1]}`,
    table.toString(),
    ...(rest > 0 ? [`and ${rest} figures more, which --json and --report have`] : []),
    'B to A: how many times as fast or as much, above 1 is better. In brackets what the quartiles of both allow; better and',
    'worse: also at their edge. Beside: measured beside weftline (copies, peers), which tells whether the machine was the same.',
    ...compareSummary(comparison),
    '',
  ].join('\n');
}

export function compareSummary({ mean, referenceMean, differences, onlyFirst, onlySecond }: Comparison): string[] {
  return [
    ...(mean === undefined ? [] : [`geometric mean of B to A: ${mean.toFixed(3)}`]),
    ...(referenceMean === undefined ? [] : [`of what was measured beside it: ${referenceMean.toFixed(3)}`]),
    ...differences.map((difference) => `differs: ${printable(difference, 200)}`),
    ...namesLine('A', onlyFirst),
    ...namesLine('B', onlySecond),
  ];
}

/** "better" or "worse" if no value within the quartiles says otherwise. */
export function compareVerdict({ low, high, hasSpread, isReference }: ComparedFigure): string {
  if (isReference) return 'beside';
  if (!hasSpread) return '';
  if (low > 1) return 'better';
  return high < 1 ? 'worse' : 'alike';
}

function row(figure: ComparedFigure): string[] {
  const { name, unit, first, second, ratio, low, high, hasSpread } = figure;
  return [
    printable(name, 200),
    printable(unit),
    digits(first),
    digits(second),
    ratio.toFixed(3),
    hasSpread ? `(${low.toFixed(2)} to ${high.toFixed(2)})` : '',
    compareVerdict(figure),
  ];
}

function namesLine(file: string, names: readonly string[]): string[] {
  if (names.length === 0) return [];
  const rest = names.length - SHOWN_NAMES;
  return [
    `only in ${file}: ${names
      .slice(0, SHOWN_NAMES)
      .map((name) => printable(name))
      .join('; ')}${rest > 0 ? ` and ${rest} more` : ''}`,
  ];
}

function digits(value: number): string {
  return value >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}
