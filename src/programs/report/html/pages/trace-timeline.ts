// The timeline of a trace as a chart: tracks of threads, lanes for spans within spans, colours for the longest phases.
import { spanName } from '../../../../tracing/chrome-trace.ts';
import { clockOffsets } from '../../../../tracing/clock-offsets.ts';
import type { TracePart } from '../../../../tracing/read-part.ts';
import type { Span } from '../../../../tracing/span.ts';
import type { TimelineChart } from '../chart.ts';

/** More rectangles than this make a page slow, and hide each other. */
const MAX_SPANS = 4000;
const MAX_LANES = 8;
const COLOURS = 8;
const OTHERS = 'others';

interface Placed {
  readonly track: number;
  readonly lane: number;
  readonly phase: string;
  readonly begin: number;
  readonly length: number;
}

export interface Timeline {
  readonly chart: TimelineChart;
  readonly shown: number;
  readonly all: number;
}

export function timelineOf(parts: readonly TracePart[]): Timeline {
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
  const begin = least(threads.flatMap(({ spans, offset }) => (spans.length === 0 ? [] : [spans[0]!.begin - offset])));
  const end = most(threads.flatMap(({ spans, offset }) => spans.map((span) => (span.end ?? span.begin) - offset)));
  const tracks = threads.map(({ name, spans, offset }, track) => {
    const placed = place(spans, end + offset).map(({ span, lane, until }) => ({
      track,
      lane,
      phase: spanName(span),
      begin: (span.begin - offset - begin) / 1000,
      length: (until - span.begin) / 1000,
    }));
    return { name, placed };
  });
  const all = tracks.flatMap(({ placed }) => placed);
  const shown = all.length <= MAX_SPANS ? all : all.toSorted((a, b) => b.length - a.length).slice(0, MAX_SPANS);
  const phases = longestPhases(shown);
  const numberOf = (phase: string): number => (phases.includes(phase) ? phases.indexOf(phase) : phases.length - 1);
  return {
    chart: {
      kind: 'timeline',
      time: { label: 'ms' },
      tracks: tracks.map(({ name, placed }) => ({ name, lanes: 1 + most([0, ...placed.map(({ lane }) => lane)]) })),
      phases,
      spans: shown.map(({ track, lane, phase, begin: from, length }) => [track, lane, numberOf(phase), from, length]),
    },
    shown: shown.length,
    all: all.length,
  };
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

function longestPhases(spans: readonly Placed[]): string[] {
  const times = new Map<string, number>();
  for (const { phase, length } of spans) times.set(phase, (times.get(phase) ?? 0) + length);
  const names = [...times].toSorted((a, b) => b[1] - a[1]).map(([name]) => name);
  return names.length <= COLOURS ? names : [...names.slice(0, COLOURS - 1), OTHERS];
}

/** Of more values than a call takes arguments. */
function least(values: readonly number[]): number {
  return values.reduce((smallest, value) => Math.min(smallest, value), Number.POSITIVE_INFINITY);
}

function most(values: readonly number[]): number {
  return values.reduce((largest, value) => Math.max(largest, value), Number.NEGATIVE_INFINITY);
}
