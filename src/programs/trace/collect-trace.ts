// Makes the trace that was asked for out of the parts that processes have left.
import { lstatSync, rmSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { resolve } from 'node:path';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { readInput, replaceFile } from '../../core/guarded-file.ts';
import { printTo } from '../../core/print.ts';
import { printable } from '../../core/quote.ts';
import { type ChromeTrace, chromeTrace, clockOffsets, eventsOf, partsOfChrome } from '../../tracing/chrome-trace.ts';
import { isHeldFile } from '../../native/libc.ts';
import { currentTrace } from '../../tracing/start-tracing.ts';
import { removeKernelMemory } from '../../tracing/kernel-ring.ts';
import { readTracePart, type TracePart } from '../../tracing/read-part.ts';
import { partsOf } from '../../tracing/trace-rings.ts';
import { settingsTable } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import { rankList } from '../../world/membership.ts';

const MAX_REASON = 200;
/** Of errors about parts, whose names anybody may have chosen who can write to the folder. */
const MAX_NAMED_REASON = 1024;

export interface CollectedTrace {
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

export interface TracedJob {
  /** Its process number. */
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

/** Of the ranks of each host those of the last launch: others are of an earlier job that was traced to the same file. */
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
    // Of JSON that is none the message has some of the text, which may have several lines.
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

/** Also of this process, which has nothing more to say. Of other hosts nothing is known. */
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
