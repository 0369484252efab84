// A result as people read it: headings, tables and charts, told once for the terminal and for the page of --report.
import Table from 'cli-table3';
import type { Summary } from '../bench/harness.ts';
import type { Axis, ChartOf, Rule } from './html/chart.ts';
import type { ReportPage, ReportSection, ReportTable } from './html/page-html.ts';
import { countEqual } from '../../core/quote.ts';
import { formatBytes } from '../../core/byte-size.ts';
import {
  type GpuMachineDocument,
  type MachineDocument,
  placementChanged,
  type PlacementSample,
} from '../bench/machine.ts';
import type { EpWorkload } from '../bench/ep/ep-workload.ts';

export interface View {
  /** The title of the page. */
  readonly title: string;
  /** First on both. */
  readonly heading?: readonly string[];
  /** Lines of the page alone. */
  readonly about?: readonly string[];
  /** A string is a line of the terminal, a section is one of the page; what is left out is false. */
  readonly parts: readonly (Part | readonly Part[])[];
  /** Last on a terminal, above the sections of a page. */
  readonly footing?: readonly string[];
}

type Part = string | ReportSection | false;

export function viewText({ heading = [], parts, footing = [] }: View): string {
  const lines = parts.flat().filter((part) => typeof part === 'string');
  return [...heading, ...lines, ...footing].map((line) => `${line}\n`).join('');
}

export function viewPage({ title, heading = [], about = [], parts, footing = [] }: View): ReportPage {
  const sections = parts.flat().filter((part) => typeof part === 'object');
  return { title, about: [...heading, ...about, ...footing], sections };
}

interface Column<R> {
  readonly head: string;
  readonly of: (row: R) => Summary | number | string | undefined;
  /** Shows numbers, and medians. */
  readonly show?: (value: number) => string;
  /** The quartiles stand beside the median. */
  readonly hasSpread?: true;
  /** What it means: a line below the table, and the note of the chart. */
  readonly note?: string | undefined;
  /** The title of its section on the page: medians with quartiles of the rows that have them. */
  readonly chart?: string;
  readonly unit?: string;
  readonly rules?: readonly Rule[];
}

export const timeColumn = {
  head: 'time',
  show: formatTime,
  hasSpread: true,
  chart: 'Time of a call',
  unit: 'µs',
} as const;

/** How many times as fast as what was measured beside it: 1 is as fast. */
export function ratioColumn(to: string): Pick<Column<unknown>, 'head' | 'show' | 'chart' | 'unit' | 'rules'> & {
  readonly hasSpread: true;
} {
  const rules = [{ value: 1, label: to }];
  return { head: 'ratio', show: fixed(2), hasSpread: true, chart: `Ratio to ${to}`, unit: 'ratio', rules };
}

/** A table of the terminal, without columns that have no value, and the charts of its columns. */
export function table<R>(
  rows: readonly R[],
  columns: readonly Column<R>[],
  nameOf?: (row: R) => string,
): readonly Part[] {
  const shown = columns.filter(({ of }) => rows.some((row) => ![undefined, ''].includes(of(row) as string)));
  return [
    tableText(rows, shown),
    ...shown.flatMap(({ head, note }) => (note === undefined ? [] : [`${head}: ${note}`])),
    ...shown.flatMap((column) => (column.chart === undefined ? [] : [chartOf(rows, column, nameOf!)])),
  ];
}

/** A table without colours and without lines between rows. */
function tableText<R>(rows: readonly R[], columns: readonly Column<R>[]): string {
  const isText = (of: Column<R>['of']): boolean => rows.some((row) => typeof of(row) === 'string');
  const made = new Table({
    head: columns.flatMap(({ head, hasSpread }) => (hasSpread ? [head, ''] : [head])),
    colAligns: columns.flatMap(({ of, hasSpread }) => [
      isText(of) ? ('left' as const) : ('right' as const),
      ...(hasSpread ? (['left'] as const) : []),
    ]),
    chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
    style: { head: [], border: [] },
  });
  for (const row of rows) {
    made.push(
      columns.flatMap(({ of, show = String, hasSpread }) => {
        const value = of(row);
        const middle = typeof value === 'object' ? value.median : value;
        const text = typeof middle === 'number' ? show(middle) : (middle ?? '');
        if (!hasSpread) return [text];
        return [text, typeof value === 'object' ? `(${spread(value, show)})` : ''];
      }),
    );
  }
  return made.toString();
}

function chartOf<R>(
  rows: readonly R[],
  { of, chart, unit = '', note = '', rules }: Column<R>,
  nameOf: (row: R) => string,
): ReportSection {
  const known = rows.flatMap((row) => {
    const value = of(row);
    const { min, p25, median, p75, max } =
      typeof value === 'object' ? value : { min: value, p25: value, median: value, p75: value, max: value };
    return typeof median === 'number' ? [{ name: nameOf(row), cells: [median, p25, p75, min, max] as number[] }] : [];
  });
  return ranges(
    { title: chart!, note, unit, ...(rules && { rules }) },
    known.map(({ name, cells: [middle, low, high] }) => ({ name, low: low!, middle: middle!, high: high! })),
    {
      head: ['case', `median, ${unit}`, 'p25', 'p75', 'least', 'most'],
      rows: known.map(({ name, cells }) => [name, ...cells]),
    },
  );
}

interface Facts {
  readonly title: string;
  readonly note: string;
  readonly rules?: readonly Rule[];
}

interface UnitFacts extends Facts {
  readonly unit: string;
}

/** Medians and 99th percentiles. */
export function percentiles(
  title: string,
  of: readonly { readonly name: string; readonly p50: number; readonly p99: number }[],
): ReportSection {
  return ranges(
    { title, note: 'Of the slowest rank: the dot is the median, the bar goes to the 99th percentile.', unit: 'µs' },
    of.map(({ name, p50, p99 }) => ({ name, low: p50, middle: p50, high: p99 })),
    { head: ['call', 'p50, µs', 'p99, µs'], rows: of.map(({ name, p50, p99 }) => [name, p50, p99]) },
  );
}

/** The distribution of times: `values` by `quantileNames`. */
export function distribution(
  facts: Facts,
  names: readonly string[],
  of: readonly { readonly name: string; readonly values: readonly number[] }[],
): ReportSection {
  const dots = of.flatMap(({ name, values }) =>
    names.map((quantile, index) => {
      const value = values[index] ?? 0;
      return { name: of.length === 1 ? quantile : `${name}, ${quantile}`, low: value, middle: value, high: value };
    }),
  );
  const head = ['of', ...names.map((name) => `${name}, µs`)];
  return ranges({ ...facts, unit: 'µs' }, dots, { head, rows: of.map(({ name, values }) => [name, ...values]) });
}

/** Middles and how far values spread about them. */
export function ranges(
  { title, note, unit, rules }: UnitFacts,
  of: ChartOf<'ranges'>['ranges'],
  shown: ReportTable,
): ReportSection {
  const value = { label: unit, scale: scaleFor(of.flatMap(({ low, high }) => [low, high])) };
  return { title, note, chart: { kind: 'ranges', value, ranges: of, ...(rules && { rules }) }, table: shown };
}

/** Bars by name and series; the table has a column for each series, unless it is another. */
export function bars(
  { title, note, unit, rules }: UnitFacts,
  of: ChartOf<'bars'>['bars'],
  shown: ReportTable = pivot(of, unit),
): ReportSection {
  return {
    title,
    note,
    chart: { kind: 'bars', value: { label: unit }, bars: of, ...(rules && { rules }) },
    table: shown,
  };
}

function pivot(of: ChartOf<'bars'>['bars'], unit: string): ReportTable {
  const series = [...new Set(of.map((bar) => bar.series))];
  const names = [...new Set(of.map(({ name }) => name))];
  const at = (name: string, one: string) => of.find((bar) => bar.name === name && bar.series === one)?.value ?? '';
  return {
    head: ['', ...series.map((one) => `${one}, ${unit}`)],
    rows: names.map((name) => [name, ...series.map((one) => at(name, one))]),
  };
}

/** Bars of one series. */
export function plainBars(
  series: string,
  of: readonly (readonly [name: string, value: number])[],
): ChartOf<'bars'>['bars'] {
  return of.map(([name, value]) => ({ name, series, value }));
}

/** Lines over x; the table has a row for each x, unless it is another. */
export function curves(
  { title, note, x, y, rules }: Facts & { readonly x: Axis; readonly y: Axis },
  lines: ChartOf<'lines'>['lines'],
  shown: ReportTable = tableOfLines(x, lines),
): ReportSection {
  return { title, note, chart: { kind: 'lines', x, y, lines, ...(rules && { rules }) }, table: shown };
}

function tableOfLines(x: Axis, lines: ChartOf<'lines'>['lines']): ReportTable {
  const places = [...new Set(lines.flatMap(({ points }) => points.map(([at]) => at)))].toSorted((a, b) => a - b);
  const columns = lines.map(({ points }) => new Map(points));
  return {
    head: [x.label, ...lines.map(({ name }) => name)],
    rows: places.map((at) => [at, ...columns.map((points) => points.get(at) ?? '')]),
  };
}

const FAR_APART = 30;

/** Logarithmic where values are far apart. */
export function scaleFor(values: readonly number[]): 'linear' | 'log' {
  const least = Math.min(...values);
  return least > 0 && Math.max(...values) / least > FAR_APART ? 'log' : 'linear';
}

// How reports write figures, and what they say of workloads and machines.

/** Quartiles: "31.3 ms to 33.3 ms". */
export function spread({ p25, p75 }: Summary, show: (value: number) => string): string {
  return `${show(p25)} to ${show(p75)}`;
}

/** Shows so many digits behind the point. */
export function fixed(digits: number): (value: number) => string {
  return (value) => value.toFixed(digits);
}

/** Three significant digits or so: "85 µs", "1.92 ms", "104 ms". */
export function formatTime(microseconds: number): string {
  const size = Math.abs(microseconds);
  if (size < 1000) return `${microseconds.toFixed(0)} µs`;
  if (size < 10_000) return `${(microseconds / 1000).toFixed(2)} ms`;
  if (size < 100_000) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1000).toFixed(0)} ms`;
}

/** "1 rank", "4 ranks". */
export function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

export function describeWorkload(workload: Omit<EpWorkload, 'dtype'>): string {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = workload;
  return `${counted(ranks, 'rank')}, ${tokens} tokens of ${hidden} each, top-${topk} of ${experts} experts, seed ${seed}, skew ${skew}`;
}

export function describeRounds({ iterations, warmup }: { iterations: number; warmup: number }): string {
  return `${iterations} iterations after ${warmup} to warm up`;
}

interface OnMachine {
  readonly machine: MachineDocument;
  readonly gpuMachine?: GpuMachineDocument;
  readonly loadAverage?: { readonly before: number; readonly after: number };
  readonly placement?: { readonly before: PlacementSample; readonly after: PlacementSample };
}

/** The machine, its GPUs, and what it was like before and after. */
export function machineLines({ machine, gpuMachine, loadAverage, placement }: OnMachine): string[] {
  const lines = gpuMachine === undefined ? [] : [describeGpus(gpuMachine)];
  lines.push(describeMachine(machine));
  if (placement === undefined || loadAverage === undefined) return lines;
  const { before, after } = placement;
  lines.push(
    `load ${loadAverage.before.toFixed(1)} before, ${loadAverage.after.toFixed(1)} after; arithmetic and round trip between cores ${showPlacement(before)} before, ${showPlacement(after)} after`,
  );
  return [...lines, ...changeLines(placement)];
}

export function changeLines({ before, after }: NonNullable<OnMachine['placement']>): string[] {
  if (!placementChanged(before, after)) return [];
  return ['The machine changed while it ran (other load, or its processors moved): run again before comparing.'];
}

function describeMachine({ commit, modified, ...of }: MachineDocument): string {
  const source = commit === undefined ? '' : `, commit ${commit.slice(0, 10)}${modified ? ' modified' : ''}`;
  return `machine: ${of.usableCores} of ${of.cores} cores (${of.cpu}), ${formatBytes(of.memoryBytes)}, ${of.platform} ${of.kernel}, Node.js ${of.nodeVersion}, weftline ${of.weftlineVersion}${source}`;
}

function describeGpus({ gpus, driver, cuda, links }: GpuMachineDocument): string {
  const models = countEqual(gpus.map(({ name, multiprocessors }) => `${name} (${multiprocessors} SMs)`));
  const kinds = new Set(links?.flatMap((row, index) => row.filter((_, other) => other !== index)));
  const linked = kinds.size === 0 ? '' : `, linked by ${[...kinds].join(', ')}`;
  return `GPUs: ${models}, driver ${driver ?? 'unknown'} (CUDA ${cuda})${linked}`;
}

function showPlacement({ arithmeticMilliseconds, coreRoundTripNanoseconds }: PlacementSample): string {
  const trip = coreRoundTripNanoseconds === undefined ? 'unknown' : `${coreRoundTripNanoseconds.toFixed(0)} ns`;
  return `${arithmeticMilliseconds.toFixed(1)} ms, ${trip}`;
}
