// weftline trace: the trace itself, out of the parts that processes have left, and what it says.
import type { Command } from 'commander';
import { printTo } from '../../core/print.ts';
import { summarize, type TraceSummary } from '../../tracing/trace-summary.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { clockOffsets, spanName, type ChromeTrace, chromeTrace } from '../../tracing/chrome-trace.ts';
import { readTracePart, type Span, type TracePart } from '../../tracing/read-part.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import { bars, plainBars, ranges, table, type View, formatTime } from '../report/view.ts';
import { lstatSync, rmSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { resolve } from 'node:path';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { readInput, replaceFile } from '../../core/guarded-file.ts';
import { printable } from '../../core/quote.ts';
import { eventsOf, partsOfChrome } from '../../tracing/chrome-trace.ts';
import { isHeldFile } from '../../native/libc.ts';
import { currentTrace } from '../../tracing/start-tracing.ts';
import { partsOf, removeKernelMemory } from '../../tracing/trace-rings.ts';
import { settingsTable } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import { rankList } from '../../world/membership.ts';

export function addTraceCommand(program: Command): void {
  const command = program
    .command('trace')
    .summary('say where the time of traced processes went')
    .description(
      'Summarises the trace that WEFTLINE_TRACE or --trace named: time by phase, the slowest rank, and who was last to ' +
        'enter the calls that ranks make together. Where processes have left FILE.HOST.PID.part, it makes FILE of them ' +
        'first: JSON for Perfetto and chrome://tracing.',
    )
    .argument('<file>', 'the file that WEFTLINE_TRACE or --trace named')
    .addHelpText(
      'after',
      `
Examples:
  weftline moe --trace moe.json && weftline trace moe.json
  WEFTLINE_TRACE=job.json torchrun --no-python --nproc-per-node 4 node train.js; weftline trace job.json`,
    );
  addReportOptions(command);
  command.action((file: string, flags: OutputFlags) => {
    const output = new Output(flags);
    const { parts, unread } = collectTrace(file);
    for (const why of unread) printTo(process.stderr, `weftline: left out: ${why}\n`);
    const summary = summarize(parts);
    // The timeline takes long, and is on the page alone.
    output.report(traceView(file, summary, flags.report === undefined ? [] : parts), { file, ...summary });
  });
}

// What people read of it: the timeline, phases and their distribution, and who waited for whom.

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

// Makes the trace that was asked for out of the parts that processes have left.

const MAX_REASON = 200;
/** Characters of errors about parts, whose names anybody may have chosen who can write to the folder. */
const MAX_NAMED_REASON = 1024;

interface CollectedTrace {
  readonly parts: readonly TracePart[];
  /** Files beside the trace that could not be read, each with the reason, and ranks without a part. */
  readonly unread: readonly string[];
  /** A trace was made of parts. */
  readonly isWritten: boolean;
}

/**
 * Reads the parts beside `file` and writes `file`. Parts of which all processes were of this host and have ended are removed
 * together, or none is: what is left out of one trace could not come into a later one. Without parts it reads `file`. Fails
 * with WL_FILE, WL_FILE_FORMAT.
 * @param job Of a launcher: only parts of processes that this one has started, and its own; and on how many nodes the job was.
 */
export function collectTrace(file: string, job?: TracedJob): CollectedTrace {
  const unread: string[] = [];
  const found = partsOf(file).flatMap((path): FoundPart[] => {
    try {
      return [{ path, part: readTracePart(path), changed: lstatSync(path).mtimeMs }];
    } catch (error) {
      unread.push(printable(asWeftlineError(error).message, MAX_NAMED_REASON));
      return [];
    }
  });
  const own = job === undefined ? newest(found, unread) : found.filter(({ part }) => isOf(part, job.launcher));
  if (own.length === 0) {
    const parts = job === undefined ? readTrace(file, unread) : [];
    return { parts, unread, isWritten: false };
  }
  const parts = own.map(({ part }) => part).toSorted(byRank);
  const missing = missingRanks(parts);
  if (job !== undefined && missing.length > 0) {
    if (job.nodes > 1) {
      const [who, where] =
        missing.length === 1
          ? ['1 rank', 'it ran on another node']
          : [`${missing.length} ranks`, 'they ran on other nodes'];
      const advice = `gather ${file}.*.part of all nodes in one folder, and run "weftline trace ${file}" there`;
      unread.push(`${who} left no part here: if ${where}, ${advice}`);
      return { parts, unread, isWritten: false };
    }
    unread.push(
      `${rankList(missing)} left no trace (${missing.length === 1 ? 'it ended before it' : 'they ended before they'} joined)`,
    );
  }
  write(file, chromeTrace(parts, clockOffsets(parts)));
  if (own.every(hasEnded)) own.forEach(remove);
  return { parts, unread, isWritten: true };
}

interface TracedJob {
  /** The process number of the launcher. */
  readonly launcher: number;
  readonly nodes: number;
}

interface FoundPart {
  readonly path: string;
  readonly part: TracePart;
  readonly changed: number;
}

/** All that a process of this host has left. */
function remove({ path, part }: FoundPart): void {
  rmSync(path, { force: true });
  removeKernelMemory(part.pid);
}

/** The parts of the last launch of each host's ranks: others are of an earlier job that was traced to the same file. */
function newest(found: readonly FoundPart[], left: string[]): FoundPart[] {
  const last = new Map<string, FoundPart>();
  for (const each of found) {
    const { host, rank } = each.part;
    const known = last.get(host);
    if (rank >= 0 && (known === undefined || known.changed < each.changed)) last.set(host, each);
  }
  return found.filter(({ path, part }) => {
    const isLast = part.rank < 0 || last.get(part.host)?.part.launcher === part.launcher;
    if (!isLast)
      left.push(`${printable(path, MAX_NAMED_REASON)} is of an earlier job: remove it, or move it away to look at it`);
    return isLast;
  });
}

function isOf({ host, pid, launcher }: TracePart, process: number): boolean {
  return host === hostname() && (pid === process || launcher === process);
}

function missingRanks(parts: readonly TracePart[]): number[] {
  const ranks = new Set(parts.filter(({ rank }) => rank >= 0).map(({ rank }) => rank));
  const size = Math.max(0, ...parts.map((part) => part.size));
  return Array.from({ length: size }, (_, rank) => rank).filter((rank) => !ranks.has(rank));
}

/** `unread`: why parts beside it, if there are any, are of no use. */
function readTrace(file: string, unread: readonly string[]): TracePart[] {
  const stats = statSync(file, { throwIfNoEntry: false });
  if (stats === undefined && unread.length > 0) {
    const more = unread.length === 1 ? '' : `, and ${unread.length - 1} more`;
    throw new WeftlineError('WL_FILE', `There is no ${file}, and no part beside it is of use: ${unread[0]}${more}`, {
      details: { file, unread },
    });
  }
  if (stats?.isDirectory() === true) {
    throw new WeftlineError('WL_FILE', `Cannot read ${file}: it is a folder; name the trace in it, without ".part"`, {
      details: { file },
    });
  }
  if (stats === undefined) {
    throw new WeftlineError(
      'WL_FILE',
      `There is no ${file}, and no process has left ${file}.HOST.PID.part: name the file that WEFTLINE_TRACE or --trace named`,
      { details: { file } },
    );
  }
  const text = readText(file);
  try {
    return partsOfChrome(JSON.parse(text));
  } catch (error) {
    // The message about a text that is no JSON has some of the text, which may have several lines.
    const why = printable(asWeftlineError(error).message, MAX_REASON);
    throw new WeftlineError('WL_FILE_FORMAT', `${file} is no trace of weftline: ${why}`, {
      details: { file },
      cause: error,
    });
  }
}

function readText(file: string): string {
  try {
    return readInput(file).toString('utf8');
  } catch (error) {
    throw new WeftlineError('WL_FILE', `Cannot read ${file}: ${asWeftlineError(error).message}`, {
      details: { file },
      cause: error,
    });
  }
}

/** Whole or not at all: a trace is looked at while the next one is written. Fails, before it writes, for one that could not be read. */
function write(file: string, trace: ChromeTrace): void {
  try {
    eventsOf(trace);
  } catch (error) {
    const why = asWeftlineError(error).message;
    throw new WeftlineError('WL_FILE_FORMAT', `The parts beside ${file} make no trace, and stay: ${why}`, {
      details: { file },
      cause: error,
    });
  }
  try {
    // An event a line, so that large traces can be searched.
    const { traceEvents, ...rest } = trace;
    const events = traceEvents.map((event) => JSON.stringify(event)).join(',\n');
    replaceFile(file, `${JSON.stringify(rest).slice(0, -1)},"traceEvents":[\n${events}\n]}\n`);
  } catch (error) {
    throw new WeftlineError('WL_FILE', `Cannot write ${file}: ${asWeftlineError(error).message}`, { cause: error });
  }
}

/** Ranks first. */
function byRank(left: TracePart, right: TracePart): number {
  return placeOf(left) - placeOf(right) || left.pid - right.pid;
}

function placeOf({ rank }: TracePart): number {
  return rank < 0 ? Number.MAX_SAFE_INTEGER : rank;
}

/** True of this process too, which has nothing more to say. Nothing is known of other hosts. */
function hasEnded({ path, part }: FoundPart): boolean {
  return part.host === hostname() && (resolve(path) === currentTrace()?.path || !isHeldFile(path));
}

/**
 * After a command that was traced: the process that started the others makes the trace of what all have left. Never fails: the
 * command has done its work. `nodes`: on how many the ranks ran.
 */
export function finishTrace(nodes: number): void {
  const file = process.env[settingsTable.trace.env] ?? '';
  if (file === '' || isRank()) return;
  try {
    const { parts, unread, isWritten } = collectTrace(file, { launcher: process.pid, nodes });
    if (parts.length === 0) return;
    for (const why of unread) printTo(process.stderr, `weftline: ${isWritten ? '' : 'no trace yet: '}${why}\n`);
  } catch (error) {
    printTo(process.stderr, `weftline: the trace was not written: ${asWeftlineError(error).message}\n`);
  }
}
