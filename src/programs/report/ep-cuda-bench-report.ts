// The table that `weftline bench ep` prints for GPUs: the cases below each other, each with its sweep of SM counts.
import Table from 'cli-table3';
import type { CudaCaseResult, EpCudaBenchReport } from '../bench/ep/cuda/ep-results.ts';
import type { Summary } from '../bench/statistics.ts';
import { describeMachine, describeRounds, describeWorkload } from './bench-heading.ts';
import { describeGpus } from './describe-gpus.ts';
import { plainTable } from './plain-table.ts';
import { spread } from './time-format.ts';

export function epCudaBenchReport(report: EpCudaBenchReport): string {
  return [
    `${describeWorkload(report.workload)}; ${describeRounds(report)}`,
    caseTable(report),
    'Times in µs of the slowest rank, medians (p25 to p75). device: by events, from the moment when all devices have come;',
    'returned and ready: of the host, until the call returned and until its results were there; + uncached: device and ready',
    'less those of the cached case. GB/s per rank: logical counts every received row, wire those from other ranks. Ratio:',
    'time of the bare copies of the same rows, by as many SMs in the same iteration, over that of the case.',
    describeCopies(report),
    describeGpus(report.gpuMachine),
    describeMachine(report.machine),
    '',
  ].join('\n');
}

function caseTable({ runs, workload }: EpCudaBenchReport): string {
  const table = new Table({
    head: ['case', 'SMs', 'device', '', 'logical', 'wire', 'ratio', '', 'returned', 'ready', '+ uncached'],
    colAligns: ['left', 'right', 'right', 'left', 'right', 'right', 'right', 'left', 'right', 'right', 'right'],
    ...plainTable,
  });
  for (const [index, { name }] of (runs[0]?.cases ?? []).entries()) {
    for (const { numSms, cases } of runs) {
      const { microseconds, ratioToCopy, beyondCached, ...result } = cases[index] as CudaCaseResult;
      table.push([
        name,
        numSms,
        tenths(microseconds.median),
        `(${spread(microseconds, tenths)})`,
        result.logicalGBpsPerRank.median.toFixed(0),
        (result.wireGBps.median / workload.ranks).toFixed(0),
        ratioToCopy?.median.toFixed(3) ?? '',
        ratioToCopy ? `(${spread(ratioToCopy, (value) => value.toFixed(2))})` : '',
        tenths(result.returnedMicroseconds.median),
        tenths(result.readyMicroseconds.median),
        beyondCached ? `${medianOf(beyondCached.microseconds)}, ${medianOf(beyondCached.readyMicroseconds)}` : '',
      ]);
    }
  }
  return table.toString();
}

/** What the ceilings turned out to be. */
function describeCopies({ runs }: EpCudaBenchReport): string {
  const lines = runs.flatMap(({ numSms, copyShapes }) =>
    Object.entries(copyShapes).map(([name, { blocks, warps, slots, partBytes, shapesTried }]) => {
      return `  ${name}, ${numSms} SMs: ${blocks} blocks of ${warps} warps, ${slots} in flight, parts of ${partBytes} bytes; best of ${shapesTried}`;
    }),
  );
  return ['copies:', ...lines].join('\n');
}

function medianOf(summary: Summary): string {
  return tenths(summary.median);
}

function tenths(value: number): string {
  return value.toFixed(1);
}
