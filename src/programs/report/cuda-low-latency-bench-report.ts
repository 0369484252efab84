// The table that `weftline bench ep --mode low-latency` prints for GPUs.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { CudaLowLatencyBenchReport } from '../bench/ep/low-latency/cuda-low-latency-results.ts';
import { describeMachine, describeRounds, describeWorkload } from './bench-heading.ts';
import { describeGpus } from './describe-gpus.ts';
import { plainTable } from './plain-table.ts';

export function cudaLowLatencyBenchReport(report: CudaLowLatencyBenchReport): string {
  const table = new Table({
    head: ['call', 'p50', 'p99', 'ratio'],
    colAligns: ['left', 'right', 'right', 'right'],
    ...plainTable,
  });
  for (const { name, microseconds, ratioToCopy } of report.cases) {
    table.push([name, microseconds.p50.toFixed(1), microseconds.p99.toFixed(1), ratioToCopy?.toFixed(2) ?? '']);
  }
  return [
    `${describeWorkload(report.workload)}; low latency, ${report.variant}; ${describeRounds(report)}`,
    table.toString(),
    'Times in µs of the slowest rank, by events on the device. Send and receive are the parts before and behind a hook; chained:',
    `the period of ${report.pairs} calls in one CUDA graph. Ratio: time of the bare copy of a row for each (token, rank), by as`,
    'many SMs in the same iteration, over that of the call.',
    `memory: window ${formatBytes(report.windowBytes)} per rank`,
    describeGpus(report.gpuMachine),
    describeMachine(report.machine),
    '',
  ].join('\n');
}
