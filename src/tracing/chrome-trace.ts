// A trace as Chrome's JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a process per rank, a track per
// thread. chromeTrace() writes it, partsOfChrome() reads it back.
import { printable } from '../core/quote.ts';
import type { TracePoint } from '../core/trace.ts';
import type { Span, TracedThread, TracePart } from './read-part.ts';

// Arrows between tracks of a trace: from a message to its arrival, and from the rank that came last to a call to those that waited.

/** Begin or end of an arrow: a slice, named by a time within it on the first host's clock. */
interface End {
  readonly pid: number;
  readonly tid: number;
  readonly time: number;
}

interface FlowOptions {
  /** Offsets as clockOffsets() estimates them. */
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

function flowEvents(parts: readonly TracePart[], options: FlowOptions): FlowEvent[] {
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

/** The last of ends in the order of their times that is not after `time`. */
function lastBefore(ends: readonly End[], time: number): End | undefined {
  let [low, high] = [0, ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle]!.time <= time) low = middle + 1;
    else high = middle;
  }
  return ends[low - 1];
}

/** No part of a call that ranks make together ends before the last has come. */
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

/** What several of run at once on a thread: shown as tracks of their own. */
const overlapping: ReadonlySet<string> = new Set([
  'agent.transfer',
  'staging.transfer',
  'staging.copy-out',
  'staging.carry',
  'staging.land',
  'staging.copy-in',
]);

/** Ranks are their own numbers; process numbers of others begin here. */
const FOREIGN = 1_000_000_000;

/** How far the clock of each host is ahead of the first one's, in microseconds. */
type ClockOffsets = ReadonlyMap<string, number>;

type ChromeEvent = Readonly<Record<string, unknown>>;

export interface ChromeTrace {
  readonly traceEvents: readonly ChromeEvent[];
  readonly displayTimeUnit: 'ms';
  readonly otherData: Readonly<Record<string, unknown>>;
}

/** Times begin at the first span. `offsets` is written into the file, and times are those of the first host's clock. */
export function chromeTrace(parts: readonly TracePart[], offsets: ClockOffsets): ChromeTrace {
  const pids: number[] = [];
  const crossing = new Set<Span>();
  // Tracks may be more than a call takes arguments.
  const first = parts
    .flatMap(({ threads }) => threads)
    .reduce((earliest, { spans }) => Math.min(earliest, spans[0]?.begin ?? Infinity), Infinity);
  const seen = new Set<number>();
  const events = parts.flatMap((part) => {
    const toTime = (time: number): number => time - (offsets.get(part.host) ?? 0) - first;
    // A rank that was started again is another process.
    const isAgain = seen.has(part.rank);
    if (part.rank >= 0) seen.add(part.rank);
    const pid = part.rank < 0 || isAgain ? FOREIGN + part.pid : part.rank;
    pids.push(pid);
    const again = isAgain ? ` (process ${part.pid})` : '';
    const name = part.rank < 0 ? `${part.program} (process ${part.pid})` : `rank ${part.rank} on ${part.host}${again}`;
    return [
      { ph: 'M', name: 'process_name', pid, args: { name } },
      {
        ph: 'M',
        name: 'process_sort_index',
        pid,
        args: { sort_index: part.rank < 0 ? part.size + part.pid : part.rank },
      },
      ...part.threads.flatMap((thread, tid) => threadEvents(thread, { pid, tid }, { toTime, crossing })),
    ];
  });
  const flows = flowEvents(parts, {
    offsets,
    pids,
    isCrossing: (span) => crossing.has(span),
    toTime: (time) => time - first,
  });
  const gpuClocks = parts.flatMap((part, at) => part.gpuClocks.map((clock) => ({ pid: pids[at], ...clock })));
  const otherData = { weftline: 'trace', clockOffsetsUs: Object.fromEntries(offsets), gpuClocks };
  return { traceEvents: [...events, ...flows], displayTimeUnit: 'ms', otherData };
}

function threadEvents(
  { name, spans }: TracedThread,
  place: { readonly pid: number; readonly tid: number },
  { toTime, crossing: all }: { readonly toTime: (time: number) => number; readonly crossing: Set<Span> },
): ChromeEvent[] {
  const crossing = crossingSpans(spans);
  for (const at of crossing) all.add(spans[at]!);
  return [
    { ph: 'M', name: 'thread_name', ...place, args: { name } },
    ...spans.flatMap((span, at): ChromeEvent[] => {
      const shared = { name: spanName(span), cat: span.point, ...place, args: { subject: span.subject } };
      const ts = toTime(span.begin);
      if (!overlapping.has(span.point) && !crossing.has(at)) {
        if (span.end === undefined) return [{ ...shared, ph: 'B', ts }];
        return [{ ...shared, ph: 'X', ts, dur: span.end - span.begin }];
      }
      const id = `${place.pid}.${place.tid}.${span.point}.${span.subject}.${span.label}`;
      const begin = { ...shared, ph: 'b', id, ts };
      return span.end === undefined ? [begin] : [begin, { ...shared, ph: 'e', id, ts: toTime(span.end) }];
    }),
  ];
}

/** Calls of several objects at once do not lie within each other, and cannot stand on one track. */
function crossingSpans(spans: readonly Span[]): ReadonlySet<number> {
  const crossing = new Set<number>();
  const open: { readonly at: number; readonly end: number }[] = [];
  for (const [at, { point, begin, end = Number.POSITIVE_INFINITY }] of spans.entries()) {
    if (overlapping.has(point)) continue;
    while (open.length > 0 && open.at(-1)!.end <= begin) open.pop();
    const outer = open.findLast((span) => !crossing.has(span.at));
    if (outer !== undefined && outer.end < end) crossing.add(at);
    else open.push({ at, end });
  }
  return crossing;
}

/** Labels of messages name them, and would make each a phase of its own. */
export function spanName({ label, point }: Span): string {
  return label === '' || point === 'transport.send' || point === 'transport.arrival' ? point : label;
}

// Estimates how far the clocks of hosts are apart from the calls that all ranks make together.

/**
 * No rank leaves a collective call before the last one has entered it. So a host's clock is ahead of the first host's by
 * at least (its latest begin - the first host's earliest end), and by at most the same with the hosts exchanged; the
 * estimate is the middle of what all calls allow. Hosts without common calls have none, nor those whose
 * calls contradict each other.
 */
export function clockOffsets(parts: readonly TracePart[]): ClockOffsets {
  const calls = new Map<string, Map<string, { begin: number; end: number }>>();
  for (const { host, threads } of parts) {
    for (const { spans } of threads) {
      for (const { point, label, subject, begin, end } of spans) {
        if (point !== 'call' || end === undefined || !isMeeting(label)) continue;
        const hosts = calls.get(`${label} ${subject}`) ?? new Map<string, { begin: number; end: number }>();
        calls.set(`${label} ${subject}`, hosts);
        const known = hosts.get(host);
        hosts.set(host, { begin: Math.max(begin, known?.begin ?? begin), end: Math.min(end, known?.end ?? end) });
      }
    }
  }
  const [first, ...others] = [...new Set(parts.map(({ host }) => host))];
  const offsets = new Map<string, number>();
  if (first !== undefined) offsets.set(first, 0);
  for (const host of others) {
    const offset = offsetOf(host, first!, calls.values());
    if (offset !== undefined) offsets.set(host, offset);
  }
  return offsets;
}

/** True for calls from which no rank returns before all have come. */
function isMeeting(label: string): boolean {
  return /\.(?:barrier|allReduce|allGather|allToAll)\b/.test(label);
}

function offsetOf(
  host: string,
  first: string,
  calls: Iterable<ReadonlyMap<string, { readonly begin: number; readonly end: number }>>,
): number | undefined {
  let least = Number.NEGATIVE_INFINITY;
  let most = Number.POSITIVE_INFINITY;
  for (const hosts of calls) {
    const [here, there] = [hosts.get(first), hosts.get(host)];
    if (here === undefined || there === undefined) continue;
    least = Math.max(least, there.begin - here.end);
    most = Math.min(most, there.end - here.begin);
  }
  // Bounds that contradict each other come of calls that only look alike.
  return Number.isFinite(least) && Number.isFinite(most) && least <= most ? (least + most) / 2 : undefined;
}

/** What weftline writes is shorter. */
const MAX_NAME = 300;

interface FileEvent {
  readonly ph: string;
  readonly name: string;
  readonly pid: number;
  readonly tid?: number;
  readonly id?: string;
  readonly ts?: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly args?: Readonly<Record<string, unknown>>;
}

interface ReadThread {
  name: string;
  readonly spans: Span[];
}

interface ReadProcess {
  name: string;
  readonly threads: Map<number, ReadThread>;
}

/** Fails if it is none of these. Names of programs are as they are shown, and all names can be. */
export function partsOfChrome(document: unknown): TracePart[] {
  const reader = new ChromeReader();
  for (const event of eventsOf(document)) reader.take(event);
  return reader.parts();
}

/** Fails as partsOfChrome() does. */
export function eventsOf(document: unknown): readonly FileEvent[] {
  const { traceEvents, otherData } = (document ?? {}) as Partial<ChromeTrace>;
  const isEvents =
    Array.isArray(traceEvents) && traceEvents.every((event) => typeof event === 'object' && event !== null);
  if (!isEvents || otherData?.['weftline'] !== 'trace') throw new Error('it has no events of weftline');
  return (traceEvents as readonly object[]).map((event, at) => {
    requireEvent(event, at);
    return event;
  });
}

/** Times that are no numbers would make sums that are none either. */
function requireEvent(
  event: { readonly [Field in keyof FileEvent]?: unknown },
  at: number,
): asserts event is FileEvent {
  const { ph, name, pid, tid = 0, ts = 0, dur = 0, cat = '', args = {} } = event;
  const wrong = Object.entries({ ph, name, cat }).find(([, value]) => typeof value !== 'string');
  const odd = Object.entries({ pid, tid, ts, dur }).find(([, value]) => !Number.isFinite(value));
  const isObject = typeof args === 'object' && args !== null;
  const field = (wrong ?? odd ?? (isObject ? undefined : ['args']))?.[0];
  if (field !== undefined) throw new Error(`"${field}" of event ${at} is not what weftline writes there`);
}

class ChromeReader {
  readonly #processes = new Map<number, ReadProcess>();
  /** Places in their thread of spans that stand on tracks of their own, by id. */
  readonly #open = new Map<string, number>();

  take(event: FileEvent): void {
    const { pid, tid = 0, args = {} } = event;
    // What arrows tell is told by the spans between which they are.
    if (event.ph === 's' || event.ph === 'f') return;
    const process = this.#processes.get(pid) ?? { name: '', threads: new Map<number, ReadThread>() };
    this.#processes.set(pid, process);
    if (event.ph === 'M') {
      if (event.name === 'process_name') process.name = shown(args['name']);
      if (event.name === 'thread_name') threadOf(process, tid).name = shown(args['name']);
      return;
    }
    const thread = threadOf(process, tid);
    this.#takeSpan(thread.spans, event);
  }

  #takeSpan(spans: Span[], { ph, name, id, ts = 0, dur, cat = '', args = {} }: FileEvent): void {
    if (ph === 'e') {
      const at = this.#open.get(String(id));
      if (at !== undefined) spans[at] = { ...spans[at]!, end: ts };
      return;
    }
    if (ph === 'b') this.#open.set(String(id), spans.length);
    const label = name === cat ? '' : shown(name);
    const end = dur === undefined ? undefined : ts + dur;
    spans.push({ point: shown(cat) as TracePoint, subject: Number(args['subject']), label, begin: ts, end });
  }

  parts(): TracePart[] {
    return [...this.#processes].map(([number, { name, threads }]) => {
      const rank = /^rank (\d+) on (\S+)/.exec(name);
      return {
        pid: number % FOREIGN,
        rank: rank === null ? -1 : Number(rank[1]),
        size: 0,
        host: rank?.[2] ?? '',
        launcher: 0,
        gpuClocks: [],
        program: name.replace(/ \(process \d+\)$/, ''),
        threads: [...threads.values()].map((thread) => ({ ...thread, lost: 0 })),
      };
    });
  }
}

function shown(name: unknown): string {
  return printable(String(name), MAX_NAME);
}

function threadOf({ threads }: ReadProcess, tid: number): ReadThread {
  const thread = threads.get(tid) ?? { name: '', spans: [] };
  threads.set(tid, thread);
  return thread;
}
