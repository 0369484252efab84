// What `weftline moe --all-layers` prints: for each layer of a model its time, and what its routing loads each rank with.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { MoeReport } from '../moe/moe-job.ts';
import { spread } from '../moe/moe-load.ts';
import { plainTable } from './plain-table.ts';

/** More ranks than this are shown by their spread alone. */
const MAX_RANK_COLUMNS = 8;

/** At least one report, all of the same model on the same ranks. */
export function layersReport(reports: readonly MoeReport[]): string {
  return [...layersHeadline(reports), loadTable(reports), memoryLine(reports), layersVerdict(reports), ''].join('\n');
}

export function layersHeadline(reports: readonly MoeReport[]): string[] {
  const { block, ranks, device, dispatcher, dtype, repeat } = reports[0]!;
  return [
    `${block.path} (${block.model?.type ?? 'unknown'}): ${reports.length} layers with experts`,
    `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts; ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}`,
    `device: ${device.kind} (${device.reason})`,
    `dispatcher ${dispatcher}, ${dtype} rows; rows that the experts of a rank compute; ms: slowest rank, median of ${repeat}`,
  ];
}

function loadTable(reports: readonly MoeReport[]): string {
  const ranks = reports[0]!.ranks;
  const shown = ranks > MAX_RANK_COLUMNS ? [] : Array.from({ length: ranks }, (_, rank) => `rank ${rank}`);
  const head = ['layer', 'ms', ...shown, 'most / mean', 'busiest expert', 'error'];
  const table = new Table({ head, colAligns: head.map(() => 'right'), ...plainTable });
  for (const { block, forwardMs, load, check } of reports) {
    const rows = load.ranks.map(({ expertRows }) => expertRows);
    const { mean, most } = spread(rows);
    const busiest = spread(load.experts).most;
    table.push([
      block.model?.layer ?? '',
      forwardMs.toFixed(2),
      ...(shown.length === 0 ? [] : rows),
      mean === 0 ? '' : (most.value / mean).toFixed(2),
      `${busiest.value} (${busiest.index})`,
      check === undefined ? '' : `${check.error.toExponential(2)}${check.passed ? '' : ' FAILED'}`,
    ]);
  }
  return table.toString();
}

function memoryLine(reports: readonly MoeReport[]): string {
  const all = reports.flatMap(({ memory }) => memory);
  const most = (of: (rank: (typeof all)[number]) => number): string => formatBytes(Math.max(...all.map(of)));
  return `memory: experts of one layer at most ${most((rank) => rank.expertBytes)} per rank; largest growth of a process ${most((rank) => rank.peakBytes)}`;
}

export function layersVerdict(reports: readonly MoeReport[]): string {
  const checked = reports.filter(({ check }) => check !== undefined);
  const failed = checked.filter(({ check }) => check?.passed === false);
  if (checked.length === 0) return 'NOT CHECKED: there is no output_f32';
  if (failed.length > 0) return `FAILED: layers ${failed.map(({ block }) => block.model?.layer).join(', ')}`;
  return `PASSED: ${checked.length} of ${reports.length} layers against output_f32, tolerance ${checked[0]?.check?.tolerance}`;
}
