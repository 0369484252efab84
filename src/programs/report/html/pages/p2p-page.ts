// The report page of `weftline bench p2p`: bandwidth over sizes, against the ceilings of the path, and latencies.
import type { BlockResult, P2pBenchReport } from '../../../bench/p2p/p2p-results.ts';
import { latencyQuantiles } from '../../../bench/transport/transport-phases.ts';
import { machineLines } from '../../bench-heading.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { quantileSection, roundsOf, summarySection } from './parts.ts';

export function p2pPage(report: P2pBenchReport): ReportPage {
  const { workload, device, backend, blocks = [], ceilings = [], pingMicroseconds, verdicts } = report;
  const others = verdicts.flatMap(({ backend: name, why }) => (why === undefined ? [] : [`${name}: ${why}`]));
  return {
    title: `Memory of one process to memory of another, by ${backend}`,
    about: [
      `${workload.mode}, memory of the ${device}, ${workload.inflight} under way`,
      ...(others.length === 0 ? [] : [`not by ${others.join('; ')}`]),
      ...machineLines(report),
    ],
    sections: [
      ...(report.sizes.length === 0 ? [] : [sizeSection(report)]),
      ...(ceilings.length === 0
        ? []
        : [
            summarySection(
              ceilings.map(({ bytes, ceiling, ratio }) => ({
                name: `${ceiling}, ${bytes.toLocaleString('en')} B`,
                summary: ratio,
              })),
              {
                title: 'Ratio to the ceiling of the path',
                note: 'Bandwidth over that of the ceiling, in turn; p25 to p75 of the rounds.',
                unit: 'ratio',
                rules: [{ value: 1, label: 'ceiling' }],
              },
            ),
          ]),
      ...(blocks.length === 0 ? [] : [blockSection(blocks)]),
      ...(pingMicroseconds === undefined
        ? []
        : [
            quantileSection('Latency of a round trip', {
              note: 'A write of 256 bytes with a notification there, and the same back.',
              names: latencyQuantiles,
              of: [{ name: backend, values: pingMicroseconds }],
              unit: 'µs',
            }),
          ]),
    ],
  };
}

function sizeSection({ sizes, ceilings = [], backend }: P2pBenchReport): ReportSection {
  const kinds = [...new Set(ceilings.map(({ ceiling }) => ceiling))];
  return {
    title: 'Bandwidth by size',
    note:
      kinds.length === 0
        ? 'Of all messages of a size.'
        : 'Of all messages of a size, and of what was measured beside it.',
    chart: {
      kind: 'lines',
      x: { label: 'bytes', scale: 'log' },
      y: { label: 'GB/s' },
      lines: [
        { name: backend, points: sizes.map(({ bytes, gigabytesPerSecond }) => [bytes, gigabytesPerSecond]) },
        ...kinds.map((kind) => ({
          name: kind,
          points: ceilings
            .filter(({ ceiling }) => ceiling === kind)
            .map(({ bytes, ceilings: found }) => [bytes, roundsOf(found).median] as const),
        })),
      ],
    },
    table: {
      head: ['bytes', 'messages', 'Gbps', 'GB/s'],
      rows: sizes.map(({ bytes, iterations, gbps, gigabytesPerSecond }) => [
        bytes.toLocaleString('en'),
        iterations,
        gbps,
        gigabytesPerSecond,
      ]),
    },
  };
}

function blockSection(blocks: readonly BlockResult[]): ReportSection {
  const batches = [...new Set(blocks.map(({ batch }) => batch))];
  return {
    title: 'Bandwidth by block size and batch',
    note: 'One transfer of a batch of blocks, one under way.',
    chart: {
      kind: 'lines',
      x: { label: 'bytes of a block', scale: 'log' },
      y: { label: 'GB/s' },
      lines: batches.map((batch) => ({
        name: `${batch} ${batch === 1 ? 'block' : 'blocks'}`,
        points: blocks
          .filter((one) => one.batch === batch)
          .map(({ blockBytes, gigabytesPerSecond }) => [blockBytes, gigabytesPerSecond] as const),
      })),
    },
    table: {
      head: ['block, bytes', 'batch', 'GB/s', 'latency, µs', 'prepare, µs', 'post, µs', 'transfer p99, µs'],
      rows: blocks.map((one) => [
        one.blockBytes.toLocaleString('en'),
        one.batch,
        one.gigabytesPerSecond,
        one.latencyMicroseconds,
        one.prepareMicroseconds.average,
        one.postMicroseconds.average,
        one.transferMicroseconds.p99,
      ]),
    },
  };
}
