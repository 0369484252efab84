// The report page of `weftline bench sparse`: time and bytes by density, against dense sums and theory.
import type { SparseBenchReport, SparseRow } from '../../../bench/sparse/sparse-results.ts';
import { machineLines } from '../../bench-heading.ts';
import type { ChartLine } from '../chart.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { scaleFor } from './parts.ts';

export function sparsePage(report: SparseBenchReport): ReportPage {
  const { workload, rows, crossing, route } = report;
  const { workers, aggregators, elements, dtype, blockSize } = workload;
  return {
    title: `Sparse sums of ${workers} workers`,
    about: [
      `${aggregators} aggregators, ${elements} ${dtype}, blocks of ${blockSize}; by ${route}; median of ${workload.rounds} rounds`,
      ...machineLines(report),
    ],
    sections: [
      section(rows, {
        title: 'Time by density',
        note: `Of the slowest worker. ${crossing === undefined ? 'Sparse is faster wherever it was measured, or nowhere.' : `Dense is faster from ${(crossing * 100).toFixed(1)} % of blocks on.`}`,
        unit: 'µs',
        of: [
          ['sparse', ({ sparseMicroseconds }) => sparseMicroseconds],
          ['dense', ({ denseMicroseconds }) => denseMicroseconds],
        ],
      }),
      section(rows, {
        title: 'Bytes by density',
        note: 'Of a worker and call. Theory: the blocks alone, of workers whose blocks lie at random.',
        unit: 'bytes',
        of: [
          ['sent', ({ sentBytes }) => sentBytes],
          ['sent, theory', ({ sentTheory }) => sentTheory],
          ['received', ({ receivedBytes }) => receivedBytes],
          ['received, theory', ({ receivedTheory }) => receivedTheory],
        ],
      }),
    ],
  };
}

interface Curves {
  readonly title: string;
  readonly note: string;
  readonly unit: string;
  readonly of: readonly (readonly [name: string, value: (row: SparseRow) => number])[];
}

function section(rows: readonly SparseRow[], { title, note, unit, of }: Curves): ReportSection {
  const lines = of.map(([name, value]): ChartLine => ({
    name,
    points: rows.map((row) => [row.density * 100, value(row)]),
  }));
  return {
    title,
    note,
    chart: {
      kind: 'lines',
      x: { label: '% of blocks', scale: scaleFor(rows.map(({ density }) => density)) },
      y: { label: unit, scale: scaleFor(rows.flatMap((row) => of.map(([, value]) => value(row)))) },
      lines,
    },
    table: {
      head: ['% of blocks', ...of.map(([name]) => `${name}, ${unit}`)],
      rows: rows.map((row) => [row.density * 100, ...of.map(([, value]) => value(row))]),
    },
  };
}
