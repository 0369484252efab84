// Sections that several report pages have: times with their spread, bandwidths, ratios, quantiles.
import type { Summary } from '../../../bench/statistics.ts';
import type { Rule } from '../chart.ts';
import type { ReportSection } from '../report-page.ts';

export interface NamedSummary {
  readonly name: string;
  readonly summary: Summary;
}

export interface SummaryFacts {
  readonly title: string;
  readonly note: string;
  readonly unit: string;
  readonly rules?: readonly Rule[];
}

/** Medians with quartiles, on a logarithmic axis where they are far apart. */
export function summarySection(of: readonly NamedSummary[], facts: SummaryFacts): ReportSection {
  const { title, note, unit, rules } = facts;
  return {
    title,
    note,
    chart: {
      kind: 'ranges',
      value: { label: unit, scale: scaleFor(of.flatMap(({ summary }) => [summary.p25, summary.p75])) },
      ranges: of.map(({ name, summary }) => ({
        name,
        low: summary.p25,
        middle: summary.median,
        high: summary.p75,
      })),
      ...(rules === undefined ? {} : { rules }),
    },
    table: {
      head: ['case', `median, ${unit}`, 'p25', 'p75', 'least', 'most'],
      rows: of.map(({ name, summary }) => [name, summary.median, summary.p25, summary.p75, summary.min, summary.max]),
    },
  };
}

/** Values of repeated rounds as if they had been summed up. */
export function roundsOf(values: readonly number[]): Summary {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number): number => sorted[Math.round((sorted.length - 1) * share)] ?? 0;
  return { count: sorted.length, min: at(0), p25: at(0.25), median: at(0.5), p75: at(0.75), max: at(1) };
}

export interface Quantiles {
  readonly name: string;
  readonly values: readonly number[];
}

/** The distribution of times: a curve over quantiles for each thing that was timed. */
export function quantileSection(
  title: string,
  { note, names, of, unit }: { note: string; names: readonly string[]; of: readonly Quantiles[]; unit: string },
): ReportSection {
  const ranges = of.flatMap(({ name, values }) =>
    names.map((quantile, index) => {
      const value = values[index] ?? 0;
      return { name: of.length === 1 ? quantile : `${name}, ${quantile}`, low: value, middle: value, high: value };
    }),
  );
  return {
    title,
    note,
    chart: {
      kind: 'ranges',
      value: { label: unit, scale: scaleFor(ranges.map(({ middle }) => middle)) },
      ranges,
    },
    table: {
      head: ['of', ...names.map((name) => `${name}, ${unit}`)],
      rows: of.map(({ name, values }) => [name, ...values]),
    },
  };
}

const FAR_APART = 30;

export function scaleFor(values: readonly number[]): 'linear' | 'log' {
  const least = Math.min(...values);
  return least > 0 && Math.max(...values) / least > FAR_APART ? 'log' : 'linear';
}
