// What `weftline moe` prints: time and traffic of each phase, the load of ranks and experts, and a verdict.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { MoeReport, PhaseReport } from '../moe/moe-job.ts';
import { spread } from '../moe/moe-load.ts';
import { plainTable } from './plain-table.ts';

/** More ranks than this are shown by their spread alone. */
const MAX_RANK_ROWS = 16;

export function moeReport(report: MoeReport): string {
  return [
    headline(report),
    phaseTable(report),
    loadTable(report),
    ...(report.load.ranks.length > MAX_RANK_ROWS ? [] : [rankTable(report)]),
    ...(report.out === undefined ? [] : [`Output written to ${report.out}`]),
    verdict(report),
    '',
  ].join('\n');
}

function headline({ block, layer, dtype, ranks, device, product, repeat, windowBytes }: MoeReport): string {
  const shape = `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts (width ${block.intermediate})`;
  return [
    block.path,
    `${shape}; ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}`,
    `device: ${device.kind} (${device.reason})`,
    `experts: ${product}`,
    `layer ${layer}, ${dtype} rows, window ${formatBytes(windowBytes)} per rank`,
    `Times: slowest rank, median of ${repeat}. Rows, bytes, GB/s: all ranks; off-rank: from other ranks.`,
  ].join('\n');
}

function phaseTable({ phases, forwardMs }: MoeReport): string {
  const table = new Table({
    head: ['phase', 'ms', 'rows', 'moved', 'GB/s', 'off-rank', 'GB/s'],
    colAligns: ['left', 'right', 'right', 'right', 'right', 'right', 'right'],
    ...plainTable,
  });
  for (const phase of phases) table.push(phaseRow(phase));
  table.push(['all in one go', forwardMs.toFixed(2), '', '', '', '', '']);
  return table.toString();
}

function phaseRow({ name, ms, rows, ...traffic }: PhaseReport): string[] {
  return [
    name,
    ms.toFixed(2),
    String(rows),
    amount(traffic.bytes),
    rate(traffic.gigabytesPerSecond),
    amount(traffic.wireBytes),
    rate(traffic.wireGigabytesPerSecond),
  ];
}

function amount(bytes: number | undefined): string {
  return bytes === undefined ? '' : formatBytes(bytes);
}

function rate(gigabytesPerSecond: number | undefined): string {
  return gigabytesPerSecond === undefined ? '' : gigabytesPerSecond.toFixed(2);
}

function loadTable({ load }: MoeReport): string {
  const table = new Table({
    head: ['rows', 'mean', 'least', 'most', 'most / mean'],
    colAligns: ['left', 'right', 'right', 'right', 'right'],
    ...plainTable,
  });
  const add = (name: string, place: string, values: readonly number[]): void => {
    const { mean, least, most } = spread(values);
    const extreme = ({ index, value }: typeof most): string => `${value} (${place} ${index})`;
    const skew = mean === 0 ? '' : (most.value / mean).toFixed(2);
    table.push([name, mean.toFixed(1), extreme(least), extreme(most), skew]);
  };
  const perRank = (count: (rank: (typeof load.ranks)[number]) => number): number[] => load.ranks.map(count);
  add('per expert', 'expert', load.experts);
  const computed = perRank((rank) => rank.expertRows);
  add('computed per rank', 'rank', computed);
  const received = perRank((rank) => rank.received);
  add('received per rank', 'rank', received);
  return table.toString();
}

function rankTable({ load }: MoeReport): string {
  const table = new Table({
    head: ['rank', 'tokens', 'rows received', 'off-rank', 'rows computed'],
    colAligns: ['right', 'right', 'right', 'right', 'right'],
    ...plainTable,
  });
  for (const { rank, tokens, received, receivedFromOthers, expertRows } of load.ranks) {
    table.push([rank, tokens, received, receivedFromOthers, expertRows]);
  }
  return table.toString();
}

function verdict({ check, forwardMs, block }: MoeReport): string {
  const perSecond = Math.round((block.tokens / forwardMs) * 1000);
  const speed = `${forwardMs.toFixed(1)} ms, ${perSecond} tokens/s`;
  if (check === undefined) return `NOT CHECKED: the file has no output_f32; ${speed}`;
  const error = `error ${check.error.toExponential(2)} against output_f32, tolerance ${check.tolerance}`;
  return check.passed ? `PASSED: ${error}; ${speed}` : `FAILED: ${error}`;
}
