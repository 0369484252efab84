// The tables that `weftline bench ep --shapes` prints: for each call its shapes, the fastest first.
import Table from 'cli-table3';
import type { TriedShapes } from '../../group/tried-shapes.ts';
import type { ShapeSweepReport } from '../bench/ep/cuda/shape-sweep.ts';
import { describeMachine, describeRounds, describeWorkload } from './bench-heading.ts';
import { describeGpus } from './describe-gpus.ts';
import { plainTable } from './plain-table.ts';

/** Of each call; the document has them all. */
const SHOWN = 12;

export function shapeSweepReport(report: ShapeSweepReport): string {
  return [
    `${describeWorkload(report.workload)}; ${report.numSms} SMs; ${describeRounds(report)}`,
    ...Object.keys(report.copies).map((name) => shapeTable(report, name)),
    'Times in µs of the slowest rank, medians; ratio: time of the bare copy in the same iterations over that of the call.',
    describeGpus(report.gpuMachine),
    describeMachine(report.machine),
    '',
  ].join('\n');
}

function shapeTable({ copies, results }: ShapeSweepReport, name: string): string {
  const table = new Table({ head: [name, 'µs', 'ratio'], colAligns: ['left', 'right', 'right'], ...plainTable });
  const rows = results.flatMap(({ shape, calls }) =>
    calls.filter((call) => call.name === name).map((call) => ({ shape, ...call })),
  );
  const byRule = rows[0];
  const fastest = rows.toSorted((a, b) => a.microseconds.median - b.microseconds.median).slice(0, SHOWN);
  for (const row of new Set([...fastest, ...(byRule ? [byRule] : [])])) {
    const { shape, microseconds, ratioToCopy } = row;
    table.push([describeShape(shape), microseconds.median.toFixed(1), ratioToCopy.median.toFixed(3)]);
  }
  const { shape, microseconds } = copies[name]!;
  const { blocks, warps, slots, partBytes } = shape;
  table.push([
    `bare copy: ${blocks} blocks of ${warps} warps, ${slots} parts of ${partBytes} bytes each`,
    microseconds.median.toFixed(1),
    '',
  ]);
  return table.toString();
}

function describeShape({ sending, gather }: TriedShapes): string {
  if (sending) {
    return `${sending.blocks} blocks, ${sending.warps} warps that move parts of at most ${sending.mostPartBytes} bytes`;
  }
  return gather ? `${gather.blocks} blocks of ${gather.warps} warps` : 'as the rule chooses';
}
