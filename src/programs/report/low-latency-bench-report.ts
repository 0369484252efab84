// The table that `weftline bench ep --mode low-latency` prints.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { LowLatencyBenchReport } from '../bench/ep/low-latency/low-latency-results.ts';
import { describeRounds, describeWorkload, machineLines } from './bench-heading.ts';
import { plainTable } from './plain-table.ts';
import { formatTime } from './time-format.ts';

export function lowLatencyBenchReport(report: LowLatencyBenchReport): string {
  const table = new Table({
    head: ['call', 'rows', 'p50', 'p99'],
    colAligns: ['left', 'left', 'right', 'right'],
    ...plainTable,
  });
  for (const { name, dtype, microseconds } of report.cases) {
    table.push([name, dtype, formatTime(microseconds.p50), formatTime(microseconds.p99)]);
  }
  return [
    `${describeWorkload(report.workload)}; low latency, ${report.variant}; ${describeRounds(report)}`,
    table.toString(),
    `Times of the slowest rank. A chained pair is a dispatch and a combine of ${report.pairs} in turn, without barriers. Send`,
    'and receive are the parts before and behind a hook, each after a barrier.',
    `memory: windows ${formatBytes(report.windowsBytes)} (all ranks)`,
    ...machineLines(report),
    '',
  ].join('\n');
}
