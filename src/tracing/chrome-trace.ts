// A trace as Chrome's JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a process per rank, a track per thread.
import type { TracePoint } from '../core/trace.ts';
import type { Span, TracedThread, TracePart } from './read-part.ts';

/** What several of run at once on a thread: shown as tracks of their own. */
const overlapping: ReadonlySet<string> = new Set([
  'agent.transfer',
  'staging.transfer',
  'staging.copy-out',
  'staging.carry',
  'staging.land',
  'staging.copy-in',
]);

const FOREIGN = 1_000_000_000;

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
  const first = Math.min(...parts.flatMap((part) => part.threads.map(({ spans }) => spans[0]?.begin ?? Infinity)));
  const events = parts.flatMap((part) => {
    const toTime = (time: number): number => time - (offsets.get(part.host) ?? 0) - first;
    const pid = processNumber(part);
    const name = part.rank < 0 ? `${part.program} (process ${part.pid})` : `rank ${part.rank} on ${part.host}`;
    return [
      { ph: 'M', name: 'process_name', pid, args: { name } },
      {
        ph: 'M',
        name: 'process_sort_index',
        pid,
        args: { sort_index: part.rank < 0 ? part.size + part.pid : part.rank },
      },
      ...part.threads.flatMap((thread, tid) => threadEvents(thread, { pid, tid }, toTime)),
    ];
  });
  const otherData = { weftline: 'trace', clockOffsetsUs: Object.fromEntries(offsets) };
  return { traceEvents: events, displayTimeUnit: 'ms', otherData };
}

/** Back from the JSON; fails if it is none of these. Names of threads and programs are as they are shown. */
export function partsOfChrome(document: unknown): TracePart[] {
  const { traceEvents, otherData } = document as Partial<ChromeTrace>;
  if (!Array.isArray(traceEvents) || otherData?.['weftline'] !== 'trace')
    throw new Error('it has no events of weftline');
  const parts = new Map<number, { name: string; threads: Map<number, { name: string; spans: Span[] }> }>();
  const open = new Map<string, number>();
  for (const event of traceEvents as readonly FileEvent[]) {
    const { ph, pid, tid = 0, ts = 0, cat = '', args = {} } = event;
    const part = parts.get(pid) ?? { name: '', threads: new Map<number, { name: string; spans: Span[] }>() };
    parts.set(pid, part);
    if (ph === 'M') {
      if (event.name === 'process_name') part.name = String(args['name']);
      continue;
    }
    const thread = part.threads.get(tid) ?? { name: '', spans: [] };
    part.threads.set(tid, thread);
    if (ph === 'e') {
      const at = open.get(String(event.id));
      if (at !== undefined) thread.spans[at] = { ...thread.spans[at]!, end: ts };
      continue;
    }
    if (ph === 'b') open.set(String(event.id), thread.spans.length);
    const label = event.name === cat ? '' : event.name;
    const end = event.dur === undefined ? undefined : ts + event.dur;
    thread.spans.push({ point: cat as TracePoint, subject: Number(args['subject']), label, begin: ts, end });
  }
  return [...parts].map(([pid, { name, threads }]) => partOf(pid, name, [...threads.values()]));
}

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

function partOf(number: number, name: string, threads: readonly { name: string; spans: readonly Span[] }[]): TracePart {
  const rank = /^rank (\d+) on (.*)$/.exec(name);
  return {
    pid: number % FOREIGN,
    rank: rank === null ? -1 : Number(rank[1]),
    size: 0,
    host: rank?.[2] ?? '',
    program: name.replace(/ \(process \d+\)$/, ''),
    threads: threads.map((thread) => ({ ...thread, lost: 0 })),
  };
}

/** Ranks are their own numbers; process numbers of others are made distinct from them. */
function processNumber({ rank, pid }: TracePart): number {
  return rank < 0 ? FOREIGN + pid : rank;
}

function threadEvents(
  { name, spans }: TracedThread,
  place: { readonly pid: number; readonly tid: number },
  toTime: (time: number) => number,
): ChromeEvent[] {
  return [
    { ph: 'M', name: 'thread_name', ...place, args: { name } },
    ...spans.flatMap((span): ChromeEvent[] => {
      const shared = { name: spanName(span), cat: span.point, ...place, args: { subject: span.subject } };
      const ts = toTime(span.begin);
      if (!overlapping.has(span.point)) {
        if (span.end === undefined) return [{ ...shared, ph: 'B', ts }];
        return [{ ...shared, ph: 'X', ts, dur: span.end - span.begin }];
      }
      const id = `${place.pid}.${place.tid}.${span.point}.${span.subject}`;
      const begin = { ...shared, ph: 'b', id, ts };
      return span.end === undefined ? [begin] : [begin, { ...shared, ph: 'e', id, ts: toTime(span.end) }];
    }),
  ];
}

export function spanName({ label, point }: Span): string {
  return label === '' ? point : label;
}
