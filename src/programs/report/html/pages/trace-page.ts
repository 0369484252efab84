// The report page of `weftline trace`: the timeline, phases and their distribution, and who waited for whom.
import type { TracePart } from '../../../../tracing/read-part.ts';
import type { TraceSummary } from '../../../../tracing/trace-summary.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { scaleFor } from './parts.ts';
import { timelineOf } from './trace-timeline.ts';

/** Phases that a chart shows, and that have a colour of their own in the timeline. */
const SHOWN_PHASES = 24;
/** What a matrix has room for. */
const SHOWN_RANKS = 256;

export function tracePage(file: string, summary: TraceSummary, parts: readonly TracePart[]): ReportPage {
  const { processes, phases, lost, calls } = summary;
  return {
    title: `Trace ${file}`,
    about: [
      `${processes.length} processes: ${processes.join(', ')}`,
      ...(lost === 0 ? [] : [`${lost} records are missing: a thread keeps its last 65,536, a GPU 262,144`]),
      'With every record and zoom: ui.perfetto.dev or chrome://tracing',
    ],
    sections:
      phases.length === 0
        ? []
        : [
            timelineSection(parts),
            phaseSection(summary),
            latencySection(summary),
            ...(calls === 0 ? [] : [waitSection(summary)]),
            ...(summary.kernelWaits.length === 0 ? [] : [kernelWaitSection(summary)]),
          ],
  };
}

function timelineSection(parts: readonly TracePart[]): ReportSection {
  const { chart, shown, all } = timelineOf(parts);
  const times = new Map<string, { count: number; total: number }>();
  for (const { name, spans } of parts.flatMap(({ threads, rank, program }) =>
    threads.map((thread) => ({ name: `${rank < 0 ? program : `rank ${rank}`}, ${thread.name}`, spans: thread.spans })),
  )) {
    const total = spans.reduce((sum, span) => sum + (span.end === undefined ? 0 : span.end - span.begin), 0);
    if (spans.length > 0) times.set(name, { count: spans.length, total });
  }
  return {
    title: 'Timeline',
    note:
      shown < all
        ? `The longest ${shown} of ${all} spans; those within others are drawn below them.`
        : 'Spans within others are drawn below them.',
    chart,
    table: {
      head: ['thread', 'spans', 'time of all spans, ms'],
      rows: [...times].map(([name, { count, total }]) => [name, count, total / 1000]),
    },
  };
}

function phaseSection({ phases }: TraceSummary): ReportSection {
  return {
    title: 'Time by phase',
    note: 'Of all processes and threads together. Slowest: the process with the longest mean, and that mean over the mean of all.',
    chart: {
      kind: 'bars',
      value: { label: 'ms' },
      bars: phases
        .slice(0, SHOWN_PHASES)
        .map(({ phase, totalUs }) => ({ name: phase, series: 'time', value: totalUs / 1000 })),
    },
    table: {
      head: ['phase', 'count', 'total, ms', 'slowest', 'its mean / mean', 'open'],
      rows: phases.map(({ phase, count, totalUs, slowest, slowestRatio, open }) => [
        phase,
        count,
        totalUs / 1000,
        slowest,
        slowestRatio,
        open,
      ]),
    },
  };
}

function latencySection({ phases }: TraceSummary): ReportSection {
  const timed = phases.filter(({ count }) => count > 0);
  const shown = timed.slice(0, SHOWN_PHASES);
  return {
    title: 'Latency of phases',
    note: 'The dot is the median, the bar goes to the 99th percentile.',
    chart: {
      kind: 'ranges',
      value: { label: 'µs', scale: scaleFor(shown.flatMap(({ medianUs, p99Us }) => [medianUs, p99Us])) },
      ranges: shown.map(({ phase, medianUs, p99Us }) => ({
        name: phase,
        low: medianUs,
        middle: medianUs,
        high: p99Us,
      })),
    },
    table: {
      head: ['phase', 'median, µs', 'p99, µs', 'most, µs'],
      rows: timed.map(({ phase, medianUs, p99Us, mostUs }) => [phase, medianUs, p99Us, mostUs]),
    },
  };
}

function kernelWaitSection({ kernelWaits }: TraceSummary): ReportSection {
  return {
    title: 'Waits in kernels',
    note: 'How long blocks of kernels waited, and for whom, groups of 16 blocks together. Ranks are counted within the group of the object whose kernel it is.',
    table: {
      head: ['waits', 'for', 'waits', 'ms', 'open'],
      rows: kernelWaits.map(({ waiter, peer, count, waitedUs, open }) => [waiter, peer, count, waitedUs / 1000, open]),
    },
  };
}

function waitSection({ waits, calls, processes }: TraceSummary): ReportSection {
  const waiting = new Set(waits.flatMap(({ waiter, last }) => [waiter, last]));
  const names = [...new Set(processes)].filter((name) => waiting.has(name)).slice(0, SHOWN_RANKS);
  const times = new Map(waits.map(({ waiter, last, waitedUs }) => [`${waiter}\n${last}`, waitedUs]));
  const cells = names.map((waiter) => names.map((last) => (times.get(`${waiter}\n${last}`) ?? 0) / 1000));
  return {
    title: 'Who waited for whom',
    note: `Of ${calls} calls that ranks of one host make together: how long each rank was in them before the last rank came, by that last rank. A dark column is a rank for which the others wait.`,
    chart: { kind: 'matrix', row: 'waits', column: 'for', value: 'ms', names, cells },
    table: {
      head: ['waits', 'for', 'calls', 'ms'],
      rows: waits.map(({ waiter, last, calls: count, waitedUs }) => [waiter, last, count, waitedUs / 1000]),
    },
  };
}
