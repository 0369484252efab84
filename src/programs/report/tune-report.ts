// What `weftline bench collectives --tune` prints: times of each algorithm by size, and the table that comes of them.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { AlgorithmRange } from '../../collectives/index.ts';
import type { TuneReport } from '../bench/collectives/tune.ts';
import { plainTable } from './plain-table.ts';

export function tuneReport({ ranks, hosts, rounds, rows, table }: TuneReport, file: string): string {
  const names = [
    ...new Set(rows.flatMap(({ microseconds }) => Object.keys(microseconds))),
  ] as (keyof (typeof rows)[number]['microseconds'])[];
  const head = ['', 'bytes', ...names.map((name) => `${name}, µs`), 'fastest'];
  const lines = new Table({
    ...plainTable,
    head,
    colAligns: ['left', ...names.map(() => 'right' as const), 'right', 'left'],
  });
  for (const { kind, bytes, microseconds, fastest } of rows) {
    lines.push([kind, formatBytes(bytes), ...names.map((name) => microseconds[name]?.toFixed(1) ?? '-'), fastest]);
  }
  return [
    `${ranks} CPU ranks on ${hosts} ${hosts === 1 ? 'host' : 'hosts'}, f32, in place, median of ${rounds} rounds, the slowest rank's time`,
    lines.toString(),
    `allReduce: ${describe(table.allReduce)}`,
    `reduce: ${describe(table.reduce)}`,
    `Written to ${file}; WEFTLINE_COLLECTIVE_TABLE=${file} uses it.`,
    '',
  ].join('\n');
}

function describe(ranges: readonly AlgorithmRange[]): string {
  return ranges
    .map(({ upToBytes, algorithm }) => (upToBytes === undefined ? algorithm : `${algorithm} up to ${upToBytes} bytes`))
    .join(', then ');
}
