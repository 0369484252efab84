// The tables that `weftline bench unpack` prints.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { KernelRate } from '../bench/unpack/cuda/kernel-rates.ts';
import type { RoadReport } from '../bench/unpack/road/road-client.ts';
import type { UnpackBenchReport } from '../bench/unpack/unpack-results.ts';
import { describeMachine, describeRounds } from './bench-heading.ts';
import { plainTable } from './plain-table.ts';
import { spread } from './time-format.ts';

export function unpackBenchReport(report: UnpackBenchReport): string {
  const { workload, device } = report;
  const chunks = `${formatBytes(workload.totalBytes)} in chunks of ${formatBytes(workload.chunkBytes)}`;
  return [
    `${device}: ${chunks}; ${describeRounds(report)}`,
    stageTable(report),
    'Times in µs, medians (p25 to p75), from the first call until the last byte is in its place. × copies: how many times',
    'faster than copies one by one in the same rounds.',
    ...(hasDocument(report) ? [documentLegend] : []),
    ...(report.components.length === 0 ? [] : [componentTable(report)]),
    ...(report.kernels.length === 0 ? [] : [kernelTable(report.kernels), kernelLegend]),
    describeMachine(report.machine),
    '',
  ].join('\n');
}

/** Of the whole road, by the transport. */
export function roadReport({ device, mode, plan, microseconds, gigabytesPerSecond, machine }: RoadReport): string {
  const { chunks, chunkBytes, fragmentBytes } = plan;
  return [
    `${chunks} chunks of ${formatBytes(chunkBytes)} in pages of ${formatBytes(fragmentBytes)} to ${device} by ${mode}; ${describeRounds(plan)}`,
    `Median: ${(microseconds.median / 1000).toFixed(3)} ms, BW: ${gigabytesPerSecond.toFixed(2)} GB/s (p25 to p75: ${spread(microseconds, tenths)} µs); contents verified`,
    describeMachine(machine),
    '',
  ].join('\n');
}

const documentLegend = [
  'document: µs per chunk by the analysis of a slow unpack path that this bench checks (docs/benchmarks/unpack.md in the',
  'repository); a measurement within a factor of 3 confirms it.',
].join('\n');

/** The document speaks of some cases of GPUs only: elsewhere its columns would be empty. */
function hasDocument({ stages }: UnpackBenchReport): boolean {
  return stages.some(({ documentMicrosecondsPerChunk }) => documentMicrosecondsPerChunk !== undefined);
}

function stageTable(report: UnpackBenchReport): string {
  const isCompared = hasDocument(report);
  const table = new Table({
    head: ['fragments', 'stage', 'µs', '', 'per chunk', 'GB/s', '× copies', ...(isCompared ? ['document', ''] : [])],
    colAligns: ['right', 'left', 'right', 'left', 'right', 'right', 'right', 'right', 'left'],
    ...plainTable,
  });
  for (const stage of report.stages) {
    table.push([
      formatBytes(stage.fragmentBytes),
      stage.name,
      tenths(stage.microseconds.median),
      `(${spread(stage.microseconds, tenths)})`,
      tenths(stage.microsecondsPerChunk),
      stage.gigabytesPerSecond.toFixed(2),
      stage.timesCopies.median.toFixed(2),
      ...(isCompared ? [stage.documentMicrosecondsPerChunk ?? '', stage.verdict] : []),
    ]);
  }
  return table.toString();
}

function componentTable({ components }: UnpackBenchReport): string {
  const table = new Table({
    head: ['part', 'µs', '', 'document', ''],
    colAligns: ['left', 'right', 'left', 'right', 'left'],
    ...plainTable,
  });
  for (const { name, microseconds, documentMicroseconds, verdict } of components) {
    const times = [tenths(microseconds.median), `(${spread(microseconds, tenths)})`];
    table.push([name, ...times, documentMicroseconds ?? '', verdict]);
  }
  return table.toString();
}

const kernelLegend = [
  'GB/s of payload by events of the device, medians. ratio: time of the bare copy of the same fragments by as many SMs over',
  'that of the kernel, from the same rounds.',
].join('\n');

function kernelTable(kernels: readonly KernelRate[]): string {
  const table = new Table({
    head: ['from', 'fragments', 'SMs', 'kernel', 'GB/s', 'ratio', ''],
    colAligns: ['left', 'right', 'right', 'left', 'right', 'right', 'left'],
    ...plainTable,
  });
  for (const { name, from, numSms, fragmentBytes, gigabytesPerSecond, ratioToBareCopy } of kernels) {
    const ratio = ratioToBareCopy?.median.toFixed(3) ?? '';
    const ratios = ratioToBareCopy ? `(${spread(ratioToBareCopy, (value) => value.toFixed(2))})` : '';
    table.push([from, formatBytes(fragmentBytes), numSms, name, tenths(gigabytesPerSecond.median), ratio, ratios]);
  }
  return table.toString();
}

function tenths(value: number): string {
  return value.toFixed(1);
}
