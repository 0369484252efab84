// Arrows between tracks of a trace: from a message to its arrival, and from the rank that came last to a call to those that waited.
import type { TracePart } from './read-part.ts';
import type { Span } from './span.ts';

/** Where an arrow begins or ends: a slice, named by a time within it on the first host's clock. */
interface End {
  readonly pid: number;
  readonly tid: number;
  readonly time: number;
}

interface FlowOptions {
  /** As clockOffsets() estimates them. */
  readonly offsets: ReadonlyMap<string, number>;
  /** The process number of each part, in their order. */
  readonly pids: readonly number[];
  /** Calls that stand on a track of their own, where no arrow can end. */
  readonly isCrossing: (span: Span) => boolean;
  readonly toTime: (time: number) => number;
}

type FlowEvent = Readonly<Record<string, unknown>>;

/** How far clocks that were compared by calls may still be apart, in microseconds: no arrival is that long before its send. */
const CLOCK_ERROR_US = 10_000;
/** Within a slice, behind its begin or before its end. */
const INSIDE_US = 0.001;

export function flowEvents(parts: readonly TracePart[], options: FlowOptions): FlowEvent[] {
  let id = 0;
  const events: FlowEvent[] = [];
  const draw = (name: string, from: End, to: End): void => {
    id += 1;
    const shared = { name, cat: 'flow', id };
    events.push({ ...shared, ph: 's', pid: from.pid, tid: from.tid, ts: options.toTime(from.time) });
    events.push({ ...shared, ph: 'f', bp: 'e', pid: to.pid, tid: to.tid, ts: options.toTime(to.time) });
  };
  drawMessages(parts, options, draw);
  drawCalls(parts, options, draw);
  return events;
}

type Draw = (name: string, from: End, to: End) => void;

/** Numbers of messages come again after some 2^32 of them: the last send before an arrival is its own. */
function drawMessages(parts: readonly TracePart[], options: FlowOptions, draw: Draw): void {
  const sends = new Map<string, End[]>();
  const arrivals: { readonly key: string; readonly end: End }[] = [];
  eachSpan(parts, options, ({ point, label, subject, begin }, place, offset) => {
    if (label === '' || (point !== 'transport.send' && point !== 'transport.arrival')) return;
    const key = `${label} ${subject}`;
    const end = { ...place, time: begin - offset };
    if (point === 'transport.arrival') arrivals.push({ key, end });
    else {
      const known = sends.get(key) ?? [];
      sends.set(key, known);
      known.push(end);
    }
  });
  for (const ends of sends.values()) ends.sort((left, right) => left.time - right.time);
  for (const { key, end } of arrivals) {
    const from = lastBefore(sends.get(key) ?? [], end.time + CLOCK_ERROR_US);
    if (from !== undefined) draw('message', from, end);
  }
}

/** Of ends in the order of their times, the last one that is not after `time`. */
function lastBefore(ends: readonly End[], time: number): End | undefined {
  let [low, high] = [0, ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle]!.time <= time) low = middle + 1;
    else high = middle;
  }
  return ends[low - 1];
}

/** Of a call that ranks make together none ends before the last has come. */
function drawCalls(parts: readonly TracePart[], options: FlowOptions, draw: Draw): void {
  const calls = new Map<string, Map<number, { readonly begin: End; readonly end: End | undefined }>>();
  parts.forEach((part, at) => {
    eachSpan([part], { ...options, pids: [options.pids[at]!] }, (span, place, offset) => {
      const { point, label, subject, begin, end } = span;
      if (point !== 'call' || part.rank < 0 || options.isCrossing(span) || !isOfAll(label)) return;
      const entries = calls.get(`${label} ${subject}`) ?? new Map<number, never>();
      calls.set(`${label} ${subject}`, entries);
      // A rank that was started again counts its calls anew.
      if (entries.has(part.rank)) return;
      entries.set(part.rank, {
        begin: { ...place, time: begin - offset + INSIDE_US },
        end: end === undefined ? undefined : { ...place, time: end - offset - INSIDE_US },
      });
    });
  });
  for (const entries of calls.values()) {
    const [lastRank, last] = [...entries].toSorted(([, left], [, right]) => left.begin.time - right.begin.time).at(-1)!;
    for (const [rank, { end }] of entries) {
      if (rank !== lastRank && end !== undefined && end.time >= last.begin.time) draw('last to come', last.begin, end);
    }
  }
}

/** A call that all ranks of the object make. */
export function isOfAll(label: string): boolean {
  return !/\.(?:send|recv|groupEnd|serve|hook of \w+|connectRanks|combineInput)\b/.test(label);
}

/** `offset`: how far the clock of the span's host is ahead. */
function eachSpan(
  parts: readonly TracePart[],
  { offsets, pids }: FlowOptions,
  visit: (span: Span, place: { readonly pid: number; readonly tid: number }, offset: number) => void,
): void {
  parts.forEach(({ host, threads }, at) =>
    threads.forEach(({ spans }, tid) => {
      for (const span of spans) visit(span, { pid: pids[at]!, tid }, offsets.get(host) ?? 0);
    }),
  );
}
