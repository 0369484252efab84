// What people read of `weftline trace`: the timeline, phases and their distribution, and who waited for whom.
import { clockOffsets, spanName } from '../../tracing/chrome-trace.ts';
import type { TracePart } from '../../tracing/read-part.ts';
import type { Span } from '../../tracing/read-kernels.ts';
import type { TraceSummary } from '../../tracing/trace-summary.ts';
import type { ReportSection } from './html/report-page.ts';
import { bars, plainBars, ranges, table, type View } from './view.ts';
import { formatTime } from './wording.ts';

/** Phases of the table, and of a chart. */
const TABLE_PHASES = 30;
const SHOWN_PHASES = 24;
const SHOWN_WAITS = 20;
/** What a matrix has room for. */
const SHOWN_RANKS = 256;
/** More rectangles than this make a page slow, and hide each other. */
const MAX_SPANS = 4000;
const MAX_LANES = 8;
const COLOURS = 8;

export function traceView(file: string, summary: TraceSummary, parts: readonly TracePart[] = []): View {
  const { processes, phases, calls, lastIn, kernelWaits, lost } = summary;
  const title = `Trace ${file}`;
  if (phases.length === 0) return { title, parts: [`${file}: ${processes.length} processes, no records`] };
  const rest = phases.length - TABLE_PHASES;
  return {
    title,
    heading: [`${file}: ${processes.length} processes: ${processes.join(', ')}`],
    parts: [
      table(phases.slice(0, TABLE_PHASES), [
        { head: 'phase', of: ({ phase }) => phase },
        { head: 'count', of: ({ count }) => count },
        { head: 'total', of: ({ totalUs }) => totalUs, show: formatTime },
        { head: 'median', of: ({ medianUs }) => medianUs, show: formatTime },
        { head: 'p99', of: ({ p99Us }) => p99Us, show: formatTime },
        { head: 'most', of: ({ mostUs }) => mostUs, show: formatTime },
        { head: 'slowest', of: ({ slowest }) => slowest },
        { head: 'its mean', of: ({ slowestRatio }) => slowestRatio, show: (ratio) => `${ratio.toFixed(2)} x` },
        { head: 'open', of: ({ open }) => (open === 0 ? undefined : open) },
      ]),
      rest > 0 && `and ${rest} phases that took less`,
      'Total: of all processes and threads together. Slowest: the process with the longest mean, and that mean over the mean of all.',
      'Open: begun and not ended.',
      calls > 0 && `Last to enter, of ${calls} calls of ranks of one host:`,
      lastIn.map(
        ({ process, calls: late, lateUs }) => `  ${process}: ${late}, ${formatTime(lateUs)} after the one before`,
      ),
      kernelWaits.length > 0 &&
        'Waits of kernels, of all groups of 16 blocks together; ranks are those of their group:',
      kernelWaits
        .slice(0, SHOWN_WAITS)
        .map(
          ({ waiter, peer, count, waitedUs, open }) =>
            `  ${waiter} for ${peer}: ${count}, ${formatTime(waitedUs)}${open === 0 ? '' : `, ${open} not ended`}`,
        ),
      timelineSection(parts),
      phaseSections(summary),
      calls > 0 && waitSection(summary),
      kernelWaits.length > 0 && {
        title: 'Waits in kernels',
        note: 'How long blocks of kernels waited, and for whom, groups of 16 blocks together. Ranks are counted within the group of the object whose kernel it is.',
        table: {
          head: ['waits', 'for', 'waits', 'ms', 'open'],
          rows: kernelWaits.map(({ waiter, peer, count, waitedUs, open }) => [
            waiter,
            peer,
            count,
            waitedUs / 1000,
            open,
          ]),
        },
      },
    ],
    footing: [
      ...(lost > 0 ? [`${lost} records are missing: a thread keeps its last 65,536, a GPU 262,144`] : []),
      'With every record and zoom: ui.perfetto.dev or chrome://tracing',
    ],
  };
}

function phaseSections({ phases }: TraceSummary): ReportSection[] {
  const timed = phases.filter(({ count }) => count > 0);
  return [
    bars(
      {
        title: 'Time by phase',
        note: 'Of all processes and threads together. Slowest: the process with the longest mean, and that mean over the mean of all.',
        unit: 'ms',
      },
      plainBars(
        'time',
        phases.slice(0, SHOWN_PHASES).map(({ phase, totalUs }) => [phase, totalUs / 1000]),
      ),
      {
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
    ),
    ranges(
      {
        title: 'Latency of phases',
        note: 'The dot is the median, the bar goes to the 99th percentile.',
        unit: 'µs',
      },
      timed
        .slice(0, SHOWN_PHASES)
        .map(({ phase, medianUs, p99Us }) => ({ name: phase, low: medianUs, middle: medianUs, high: p99Us })),
      {
        head: ['phase', 'median, µs', 'p99, µs', 'most, µs'],
        rows: timed.map(({ phase, medianUs, p99Us, mostUs }) => [phase, medianUs, p99Us, mostUs]),
      },
    ),
  ];
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

/** Tracks of threads, lanes for spans within spans, colours for the longest phases. */
function timelineSection(parts: readonly TracePart[]): ReportSection {
  const offsets = clockOffsets(parts);
  const threads = parts.flatMap((part) =>
    part.threads
      .filter(({ spans }) => spans.length > 0)
      .map(({ name, spans }) => ({
        name: `${part.rank < 0 ? part.program : `rank ${part.rank}`}, ${name}`,
        spans,
        offset: offsets.get(part.host) ?? 0,
      })),
  );
  const begin = threads.reduce((least, { spans, offset }) => Math.min(least, spans[0]!.begin - offset), Infinity);
  const end = threads.reduce((most, of) => Math.max(most, endOf(of.spans) - of.offset), -Infinity);
  const tracks = threads.map(({ name, spans, offset }, track) => ({
    name,
    placed: place(spans, end + offset).map(({ span, lane, until }) => ({
      track,
      lane,
      phase: spanName(span),
      begin: (span.begin - offset - begin) / 1000,
      length: (until - span.begin) / 1000,
    })),
  }));
  const all = tracks.flatMap(({ placed }) => placed);
  const shown = all.length <= MAX_SPANS ? all : all.toSorted((a, b) => b.length - a.length).slice(0, MAX_SPANS);
  const phases = longestPhases(shown);
  const numberOf = (phase: string): number => (phases.includes(phase) ? phases.indexOf(phase) : phases.length - 1);
  const left = shown.length < all.length ? `The longest ${shown.length} of ${all.length} spans; those` : 'Spans';
  return {
    title: 'Timeline',
    note: `${left} within others are drawn below them.`,
    chart: {
      kind: 'timeline',
      time: { label: 'ms' },
      tracks: tracks.map(({ name, placed }) => ({
        name,
        lanes: 1 + placed.reduce((most, { lane }) => Math.max(most, lane), 0),
      })),
      phases,
      spans: shown.map(({ track, lane, phase, begin: from, length }) => [track, lane, numberOf(phase), from, length]),
    },
    table: {
      head: ['thread', 'spans', 'time of all spans, ms'],
      rows: threads.map(({ name, spans }) => [
        name,
        spans.length,
        spans.reduce((sum, span) => sum + (span.end === undefined ? 0 : span.end - span.begin), 0) / 1000,
      ]),
    },
  };
}

function endOf(spans: readonly Span[]): number {
  return spans.reduce((most, span) => Math.max(most, span.end ?? span.begin), -Infinity);
}

/** What has not ended goes on until `end`. A span gets the first lane that is free when it begins. */
function place(spans: readonly Span[], end: number): { span: Span; lane: number; until: number }[] {
  const free: number[] = [];
  return spans.map((span) => {
    const until = span.end ?? end;
    const found = free.findIndex((time) => time <= span.begin);
    const lane = Math.min(found === -1 ? free.length : found, MAX_LANES - 1);
    free[lane] = Math.max(until, free[lane] ?? 0);
    return { span, lane, until };
  });
}

function longestPhases(spans: readonly { readonly phase: string; readonly length: number }[]): string[] {
  const times = new Map<string, number>();
  for (const { phase, length } of spans) times.set(phase, (times.get(phase) ?? 0) + length);
  const names = [...times].toSorted((a, b) => b[1] - a[1]).map(([name]) => name);
  return names.length <= COLOURS ? names : [...names.slice(0, COLOURS - 1), 'others'];
}
