// A trace as Chrome's JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a process per rank, a track per thread.
import { flowEvents } from './chrome-flows.ts';
import type { TracePart } from './read-part.ts';
import type { Span, TracedThread } from './span.ts';

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
export const FOREIGN = 1_000_000_000;

/** How far the clock of each host is ahead of the first one's, in microseconds. */
export type ClockOffsets = ReadonlyMap<string, number>;

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
