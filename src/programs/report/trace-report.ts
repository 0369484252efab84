// The text of `weftline trace`: phases by time, and the ranks for which others wait.
import Table from 'cli-table3';
import type { PhaseSummary, TraceSummary } from '../../tracing/trace-summary.ts';
import { plainTable } from './plain-table.ts';
import { formatTime } from './time-format.ts';

const SHOWN_PHASES = 30;
const SHOWN_WAITS = 20;

export function traceReport(file: string, summary: TraceSummary): string {
  const { processes, phases, calls, lastIn, kernelWaits, lost } = summary;
  if (phases.length === 0) return `${file}: ${processes.length} processes, no records\n`;
  const table = new Table({
    ...plainTable,
    head: ['phase', 'count', 'total', 'median', 'p99', 'most', 'slowest', 'its mean', 'open'],
  });
  for (const phase of phases.slice(0, SHOWN_PHASES)) table.push(row(phase));
  const rest = phases.length - SHOWN_PHASES;
  return [
    `${file}: ${processes.length} processes: ${processes.join(', ')}`,
    table.toString(),
    ...(rest > 0 ? [`and ${rest} phases that took less`] : []),
    'Total: of all processes and threads together. Slowest: the process with the longest mean, and that mean over the mean of all.',
    'Open: begun and not ended.',
    ...(calls === 0 ? [] : [`Last to enter, of ${calls} calls of ranks of one host:`]),
    ...lastIn.map(
      ({ process, calls: late, lateUs }) => `  ${process}: ${late}, ${formatTime(lateUs)} after the one before`,
    ),
    ...(kernelWaits.length === 0
      ? []
      : ['Waits of kernels, of all groups of 16 blocks together; ranks are those of their group:']),
    ...kernelWaits
      .slice(0, SHOWN_WAITS)
      .map(
        ({ waiter, peer, count, waitedUs, open }) =>
          `  ${waiter} for ${peer}: ${count}, ${formatTime(waitedUs)}${open === 0 ? '' : `, ${open} not ended`}`,
      ),
    ...(lost > 0 ? [`${lost} records are missing: a thread keeps its last 65,536, a GPU 262,144`] : []),
    'Look at it at ui.perfetto.dev, or in chrome://tracing',
    '',
  ].join('\n');
}

function row(phase: PhaseSummary): string[] {
  const { count, totalUs, medianUs, p99Us, mostUs, slowest, slowestRatio, open } = phase;
  const times = [totalUs, medianUs, p99Us, mostUs].map((time) => formatTime(time));
  return [
    phase.phase,
    String(count),
    ...times,
    slowest,
    `${slowestRatio.toFixed(2)} x`,
    open === 0 ? '' : String(open),
  ];
}
