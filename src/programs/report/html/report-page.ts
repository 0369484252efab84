// What a report page holds: sections, each with a chart and the table that says the same in figures.
import type { Chart } from './chart.ts';

export interface ReportPage {
  readonly title: string;
  /** Workload, machine and the like, a line each. */
  readonly about: readonly string[];
  readonly sections: readonly ReportSection[];
}

export interface ReportSection {
  readonly title: string;
  /** What is shown, and how to read it. */
  readonly note?: string;
  readonly chart?: Chart;
  readonly table: ReportTable;
}

export interface ReportTable {
  readonly head: readonly string[];
  /** Numbers are aligned to the right. */
  readonly rows: readonly (readonly (string | number)[])[];
}

/** At most four significant digits, or all of those before the point: "0.001235", "12,346". */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const digits = Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString('en', digits);
}
