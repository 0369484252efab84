// The tables that `weftline bench ep` prints.
import Table from 'cli-table3';
import type { CaseResult, EpBenchReport } from '../bench/ep/ep-results.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { describeRounds, describeWorkload, machineLines } from './bench-heading.ts';
import { plainTable } from './plain-table.ts';
import { formatTime, spread } from './time-format.ts';

export function epBenchReport(report: EpBenchReport): string {
  return [
    heading(report),
    caseTable(report.cases),
    'GB/s of all ranks together: logical counts every received row, wire those from other ranks. Ratio: bandwidth over',
    'that of copying the same rows in the same iteration; ratio back: over that of copying them from the windows back.',
    'Beyond: time less the time of the copy ceiling. (p25 to p75)',
    ...memoryLines(report),
    ...machineLines(report),
    '',
  ].join('\n');
}

function heading(report: EpBenchReport): string {
  return `${describeWorkload(report.workload)}, dispatch ${report.workload.dtype}; ${describeRounds(report)}`;
}

function caseTable(cases: readonly CaseResult[]): string {
  const table = new Table({
    head: ['case', 'time', '', 'logical GB/s', 'wire GB/s', 'ratio', '', 'ratio back', 'beyond copying'],
    colAligns: ['left', 'right', 'left', 'right', 'right', 'right', 'left', 'right', 'right'],
    ...plainTable,
  });
  for (const [index, result] of cases.entries()) {
    const { microseconds, ratioToCeiling, ratioToCopyBack, beyondCopyingMicroseconds } = result;
    const compared = index > 0;
    table.push([
      result.name,
      formatTime(microseconds.median),
      `(${spread(microseconds, formatTime)})`,
      result.logicalGBps.median.toFixed(2),
      result.wireGBps.median.toFixed(2),
      compared ? ratioToCeiling.median.toFixed(2) : '',
      compared ? `(${spread(ratioToCeiling, (value) => value.toFixed(2))})` : '',
      ratioToCopyBack?.median.toFixed(2) ?? '',
      compared ? formatTime(beyondCopyingMicroseconds.median) : '',
    ]);
  }
  return table.toString();
}

function memoryLines({ memory }: EpBenchReport): string[] {
  const layer =
    memory.layerWindowsBytes === undefined ? '' : `, of EPAll2AllLayer ${formatBytes(memory.layerWindowsBytes)}`;
  const hint =
    memory.deepEpHintBytes === undefined
      ? ''
      : `; DeepEP's size hint is ${formatBytes(memory.deepEpHintBytes)} per rank`;
  return [
    `memory: windows of EpBuffer ${formatBytes(memory.bufferWindowsBytes)}${layer} (all ranks), device memory of rank 0 ${formatBytes(memory.deviceBytes)}${hint}`,
  ];
}
