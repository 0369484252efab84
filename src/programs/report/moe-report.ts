// What `weftline moe` prints: time and traffic of each phase, the load of ranks and experts, and a verdict.
import Table from 'cli-table3';
import { formatBytes } from '../../core/byte-size.ts';
import type { PhaseReport } from '../moe/measure-forward.ts';
import type { MoeReport } from '../moe/moe-job.ts';
import { type MoeLoad, spread } from '../moe/moe-load.ts';
import { plainTable } from './plain-table.ts';

/** More ranks than this are shown by their spread alone. */
const MAX_RANK_ROWS = 16;

export function moeReport(report: MoeReport): string {
  return [
    ...moeHeadline(report),
    ...redundantLines(report),
    phaseTable(report),
    loadTable(report),
    ...(report.load.ranks.length > MAX_RANK_ROWS ? [] : [rankTable(report)]),
    ...(report.out === undefined ? [] : [`Output written to ${report.out}`]),
    moeVerdict(report),
    '',
  ].join('\n');
}

export function moeHeadline({
  block,
  dispatcher,
  dtype,
  memory,
  ranks,
  device,
  product,
  repeat,
  windowBytes,
}: MoeReport): string[] {
  const shared = block.sharedIntermediate === undefined ? '' : `, a shared expert (width ${block.sharedIntermediate})`;
  const shape = `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts (width ${block.intermediate})${shared}`;
  return [
    block.model === undefined ? block.path : `${block.path}, layer ${block.model.layer} (${block.model.type})`,
    `${shape}; ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}`,
    `device: ${device.kind} (${device.reason})`,
    `experts: ${product}`,
    `dispatcher ${dispatcher}, ${dtype} rows, window ${formatBytes(windowBytes)} per rank`,
    ...memoryLine(memory),
    `Times: slowest rank, median of ${repeat}. Rows, bytes, GB/s: all ranks; off-rank: from other ranks.`,
  ];
}

/** Of the rank whose process has grown most. */
function memoryLine(memory: MoeReport['memory']): string[] {
  const most = memory.toSorted((one, other) => other.peakBytes - one.peakBytes)[0];
  if (most === undefined) return [];
  const { expertBytes, peakBytes } = most;
  return [
    `memory: experts ${formatBytes(expertBytes)} per rank; largest growth of a process ${formatBytes(peakBytes)}`,
  ];
}

function redundantLines({ redundantExperts, block, forwardMs }: MoeReport): string[] {
  if (redundantExperts === undefined) return [];
  const { count, copiedExperts, without, check } = redundantExperts;
  const physical = block.experts + count;
  const difference =
    check.error === 0 ? 'the same bit for bit' : `differs by ${check.error.toExponential(2)} of its norm`;
  return [
    `redundant experts: ${count} copies of ${copiedExperts} busy experts, ${physical} physical experts in all`,
    `before, without them: ${without.forwardMs.toFixed(1)} ms; after: ${forwardMs.toFixed(1)} ms; output ${difference}`,
  ];
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

function loadTable({ load, redundantExperts }: MoeReport): string {
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
  const addLoad = ({ experts, ranks }: MoeLoad, expert: string, suffix: string): void => {
    add(`per ${expert}${suffix}`, 'expert', experts);
    const computed = ranks.map(({ expertRows }) => expertRows);
    add(`computed per rank${suffix}`, 'rank', computed);
    const received = ranks.map((rank) => rank.received);
    add(`received per rank${suffix}`, 'rank', received);
  };
  if (redundantExperts !== undefined) addLoad(redundantExperts.without.load, 'expert', ' before');
  addLoad(
    load,
    redundantExperts === undefined ? 'expert' : 'physical expert',
    redundantExperts === undefined ? '' : ' after',
  );
  return table.toString();
}

function rankTable({ load, redundantExperts }: MoeReport): string {
  const before = redundantExperts?.without.load.ranks;
  const head = ['rank', 'tokens', 'rows received', 'off-rank', 'rows computed', ...(before ? ['computed before'] : [])];
  const table = new Table({ head, colAligns: head.map(() => 'right'), ...plainTable });
  for (const { rank, tokens, received, receivedFromOthers, expertRows } of load.ranks) {
    const plain = before?.[rank]?.expertRows;
    table.push([rank, tokens, received, receivedFromOthers, expertRows, ...(plain === undefined ? [] : [plain])]);
  }
  return table.toString();
}

export function moeVerdict({ check, forwardMs, block }: MoeReport): string {
  const perSecond = Math.round((block.tokens / forwardMs) * 1000);
  const speed = `${forwardMs.toFixed(1)} ms, ${perSecond} tokens/s`;
  if (check === undefined) return `NOT CHECKED: there is no output_f32; ${speed}`;
  const error = `error ${check.error.toExponential(2)} against output_f32, tolerance ${check.tolerance}`;
  return check.passed ? `PASSED: ${error}; ${speed}` : `FAILED: ${error}`;
}
