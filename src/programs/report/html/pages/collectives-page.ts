// The report page of `weftline bench collectives`: time and bandwidth over sizes, by operation, beside the peer's.
import type { CollectiveRow, CollectivesBenchReport } from '../../../bench/collectives/collectives-results.ts';
import { machineLines } from '../../bench-heading.ts';
import type { ChartLine } from '../chart.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';

export function collectivesPage(report: CollectivesBenchReport): ReportPage {
  const { workload, peer, rows, ratios } = report;
  const kinds = workload.kinds.filter((kind) => rows.some((row) => row.kind === kind));
  return {
    title: `Collectives of ${workload.ranks} ranks`,
    about: [
      `${workload.dtype}, reductions by ${workload.op}; median of ${workload.rounds} rounds, the slowest rank${peer === undefined ? '' : `; peer in the same rounds: ${peer}`}`,
      ...machineLines(report),
    ],
    sections: [
      ...kinds.map((kind) =>
        kindSection(
          kind,
          rows.filter((row) => row.kind === kind),
        ),
      ),
      ...(ratios.length === 0 ? [] : [ratioSection(ratios)]),
    ],
  };
}

function kindSection(kind: string, rows: readonly CollectiveRow[]): ReportSection {
  const hasPeer = rows.some(({ outOfPlace }) => outOfPlace.peerMicroseconds !== undefined);
  const line = (name: string, value: (row: CollectiveRow) => number): ChartLine => ({
    name,
    points: rows.map((row) => [row.bytes, value(row)]),
  });
  return {
    title: kind,
    note: 'Bus bandwidth, as nccl-tests count it, by the size of the larger tensor of a rank.',
    chart: {
      kind: 'lines',
      x: { label: 'bytes', scale: 'log' },
      y: { label: 'bus bandwidth, GB/s' },
      lines: [
        line('out of place', ({ outOfPlace }) => outOfPlace.busbw),
        line('in place', ({ inPlace }) => inPlace.busbw),
        ...(hasPeer
          ? [
              line('peer, out of place', ({ outOfPlace: { busbw, microseconds, peerMicroseconds = 0 } }) =>
                peerMicroseconds === 0 ? 0 : (busbw * microseconds) / peerMicroseconds,
              ),
            ]
          : []),
      ],
    },
    table: {
      head: ['bytes', 'µs', 'GB/s, bus', 'µs in place', 'GB/s, bus', 'wrong', ...(hasPeer ? ['peer, µs'] : [])],
      rows: rows.map(({ bytes, outOfPlace, inPlace }) => [
        bytes.toLocaleString('en'),
        outOfPlace.microseconds,
        outOfPlace.busbw,
        inPlace.microseconds,
        inPlace.busbw,
        outOfPlace.wrong === undefined || inPlace.wrong === undefined ? 'N/A' : outOfPlace.wrong + inPlace.wrong,
        ...(hasPeer ? [outOfPlace.peerMicroseconds ?? ''] : []),
      ]),
    },
  };
}

function ratioSection(ratios: CollectivesBenchReport['ratios']): ReportSection {
  return {
    title: 'Against the peer',
    note: 'How many times as fast as the peer: geometric mean over sizes and both ways of placing. Small: up to 4 KiB.',
    chart: {
      kind: 'bars',
      value: { label: 'times as fast' },
      bars: ratios.map(({ kind, sizes, geometricMean }) => ({ name: kind, series: sizes, value: geometricMean })),
      rules: [{ value: 1, label: 'peer' }],
    },
    table: {
      head: ['operation', 'sizes', 'geometric mean', 'worst', 'at bytes'],
      rows: ratios.map(({ kind, sizes, geometricMean, worst, worstBytes }) => [
        kind,
        sizes,
        geometricMean,
        worst,
        worstBytes,
      ]),
    },
  };
}
