// What `weftline bench collectives` prints: the columns of nccl-tests, with the peer's times where there is one.
import type {
  CollectiveRow,
  CollectivesBenchReport,
  CollectiveTimes,
} from '../bench/collectives/collectives-results.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { machineLines } from './bench-heading.ts';

const reducing = new Set(['allReduce', 'reduceScatter', 'reduce']);

export function collectivesBenchReport(report: CollectivesBenchReport): string {
  const { workload, peer, rows, ratios, ranksOn } = report;
  const kinds = workload.kinds.filter((kind) => rows.some((row) => row.kind === kind));
  return [
    `${workload.ranks} ${ranksOn} ranks, median of ${workload.rounds} rounds, the slowest rank's time${peer === undefined ? '' : `; peer in the same rounds: ${peer}`}`,
    ...kinds.flatMap((kind) => [
      `# ${kind}`,
      ...heading(peer !== undefined),
      ...rows.filter((row) => row.kind === kind).map((row) => line(row, report)),
    ]),
    ...ratios.map(
      ({ kind, sizes, geometricMean, worst, worstBytes }) =>
        `${kind}, ${sizes === 'small' ? 'up to 4 KiB' : 'above'}: ${geometricMean.toFixed(2)} times as fast as the peer in the geometric mean, at worst ${worst.toFixed(2)} (${formatBytes(worstBytes)})`,
    ),
    ...machineLines(report),
    '',
  ].join('\n');
}

function heading(hasPeer: boolean): string[] {
  const way = ['time', 'algbw', 'busbw', '#wrong', ...(hasPeer ? ['peer'] : [])];
  const units = ['(us)', '(GB/s)', '(GB/s)', '', ...(hasPeer ? ['(us)'] : [])];
  const width = way.length * COLUMN;
  const blank = ' '.repeat(LEFT);
  return [
    `#${blank}${'out-of-place'.padStart(width)}${'in-place'.padStart(width)}`,
    `#${left('size', 'count', 'type', 'redop')}${cells(way)}${cells(way)}`,
    `#${left('(B)', '(elements)', '', '')}${cells(units)}${cells(units)}`,
  ];
}

function line(
  { kind, bytes, count, outOfPlace, inPlace }: CollectiveRow,
  { workload, peer }: CollectivesBenchReport,
): string {
  const op = reducing.has(kind) ? workload.op : 'none';
  const timesOf = (times: CollectiveTimes): string =>
    cells([
      times.microseconds.toFixed(2),
      times.algbw.toFixed(2),
      times.busbw.toFixed(2),
      times.wrong === undefined ? 'N/A' : String(times.wrong),
      ...(peer === undefined ? [] : [times.peerMicroseconds!.toFixed(2)]),
    ]);
  return ` ${left(String(bytes), String(count), workload.dtype, op)}${timesOf(outOfPlace)}${timesOf(inPlace)}`;
}

const COLUMN = 11;
const LEFT = 12 + 12 + 8 + 8;

function left(size: string, count: string, type: string, op: string): string {
  return size.padStart(12) + count.padStart(12) + type.padStart(8) + op.padStart(8);
}

function cells(texts: readonly string[]): string {
  return texts.map((text) => text.padStart(COLUMN)).join('');
}
