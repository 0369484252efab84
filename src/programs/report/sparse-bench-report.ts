// What `weftline bench sparse` prints at its end.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { SparseBenchReport, SparseRow } from '../bench/sparse/sparse-results.ts';
import { tensorBytes } from '../bench/sparse/sparse-tensor.ts';
import { machineLines } from './bench-heading.ts';
import { plainTable } from './plain-table.ts';

export function sparseBenchReport(report: SparseBenchReport): string {
  const { workload, rows, bitmap, crossing, route, gpu } = report;
  const { workers, aggregators, fanIn, elements, dtype, blockSize, messageSize, slots } = workload;
  const helpers = aggregators === 0 ? 'which aggregate' : `and ${aggregators} aggregators`;
  const tree = fanIn === 0 ? '' : ` in trees of fan-in ${fanIn}`;
  const bytes = tensorBytes(workload);
  return [
    `${workers} workers ${gpu === undefined ? '' : `on GPUs (${gpu}) `}${helpers}${tree}, ${elements} ${dtype} (${formatBytes(bytes)}), blocks of ${blockSize}, messages of ${messageSize}, ${slots} slots; by ${route}; median of ${workload.rounds} rounds, the slowest worker's time`,
    table(rows, bytes),
    ...(crossing === undefined ? [] : [`dense is faster from ${percent(crossing)} of blocks on`]),
    `bitmap kernel: ${bitmap.bitmap.toFixed(1)} GB/s, ${(bitmap.bitmap / bitmap.read).toFixed(2)} of a plain read (${bitmap.read.toFixed(1)} GB/s)`,
    ...machineLines(report),
    resultCheck(rows),
    '',
  ].join('\n');
}

/** As a line of the program that this one follows, which calls 2^30 bytes a GB. */
export function roundLine(bytes: number, microseconds: number): string {
  const perSecond = bytes / (microseconds / 1e6);
  const [decimal, binary] = [perSecond / 1e9, perSecond / 2 ** 30];
  return `tensor size: ${bytes} Bytes; time: ${Math.round(microseconds)} us; alg bw: ${decimal.toFixed(3)} GB/s (${binary.toFixed(3)} GiB/s)`;
}

/** "/ theory": how many times the bytes of the blocks alone. */
function table(rows: readonly SparseRow[], bytes: number): string {
  const head = [
    'blocks',
    'of sum',
    'sent',
    '/ theory',
    'received',
    '/ theory',
    'messages',
    'us',
    'GB/s',
    'dense us',
    'faster',
  ];
  const lines = new Table({ ...plainTable, head, colAligns: head.map(() => 'right') });
  for (const row of rows) lines.push(cells(row, bytes));
  return lines.toString();
}

function resultCheck(rows: readonly SparseRow[]): string {
  const wrong = rows.reduce((sum, row) => sum + row.wrong, 0);
  return wrong === 0 ? 'result check: ok' : `result check: error, ${wrong} elements differ`;
}

function cells(row: SparseRow, bytes: number): string[] {
  return [
    percent(row.ownBlocks / Math.max(1, row.blocks)),
    percent(row.sumBlocks / Math.max(1, row.blocks)),
    formatBytes(Math.round(row.sentBytes)),
    against(row.sentBytes, row.sentTheory),
    formatBytes(Math.round(row.receivedBytes)),
    against(row.receivedBytes, row.receivedTheory),
    row.messages.toFixed(0),
    row.sparseMicroseconds.toFixed(0),
    (bytes / row.sparseMicroseconds / 1000).toFixed(2),
    row.denseMicroseconds.toFixed(0),
    (row.denseMicroseconds / row.sparseMicroseconds).toFixed(2),
  ];
}

function against(measured: number, theory: number): string {
  return theory === 0 ? '-' : (measured / theory).toFixed(3);
}

function percent(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}
