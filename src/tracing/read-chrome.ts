// Reads a trace back from the JSON that chromeTrace() has made.
import type { TracePoint } from '../core/trace.ts';
import { printable } from '../core/quote.ts';
import { type ChromeTrace, FOREIGN } from './chrome-trace.ts';
import type { TracePart } from './read-part.ts';
import type { Span } from './read-kernels.ts';

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
  /** By id of spans that stand on tracks of their own: where they are in their thread. */
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
