// Makes the trace that was asked for out of the parts that processes have left.
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { type ChromeTrace, chromeTrace, partsOfChrome } from '../../tracing/chrome-trace.ts';
import { clockOffsets } from '../../tracing/clock-offsets.ts';
import { readTracePart, type TracePart } from '../../tracing/read-part.ts';
import { partsOf } from '../../tracing/trace-parts.ts';

export interface CollectedTrace {
  readonly parts: readonly TracePart[];
  /** Files beside the trace that could not be read, each with the reason. */
  readonly unread: readonly string[];
}

/**
 * Reads the parts beside `file`, writes `file` and removes the parts of processes of this host that have ended. Without
 * parts it reads `file`. Fails with WL_FILE, WL_FILE_FORMAT.
 */
export function collectTrace(file: string): CollectedTrace {
  const paths = partsOf(file);
  if (paths.length === 0) return { parts: readTrace(file), unread: [] };
  const unread: string[] = [];
  const parts = paths.flatMap((path): { path: string; part: TracePart }[] => {
    try {
      return [{ path, part: readTracePart(path) }];
    } catch (error) {
      unread.push(asWeftlineError(error).message);
      return [];
    }
  });
  const all = parts.map(({ part }) => part).toSorted(byRank);
  if (all.length > 0) write(file, chromeTrace(all, clockOffsets(all)));
  for (const { path, part } of parts) if (hasEnded(part)) rmSync(path, { force: true });
  return { parts: all, unread };
}

function readTrace(file: string): TracePart[] {
  if (!existsSync(file)) {
    throw new WeftlineError(
      'WL_FILE',
      `There is no ${file}, and no process has left ${file}.HOST.PID.part: name the file that WEFTLINE_TRACE or --trace named`,
      { details: { file } },
    );
  }
  try {
    return partsOfChrome(JSON.parse(readFileSync(file, 'utf8')));
  } catch (error) {
    throw new WeftlineError('WL_FILE_FORMAT', `${file} is no trace of weftline: ${asWeftlineError(error).message}`, {
      details: { file },
      cause: error,
    });
  }
}

/** Whole or not at all: a trace is looked at while the next one is written. */
function write(file: string, trace: ChromeTrace): void {
  const draft = `${file}.${process.pid}.draft`;
  try {
    // An event a line, so that large traces can be searched.
    const { traceEvents, ...rest } = trace;
    const events = traceEvents.map((event) => JSON.stringify(event)).join(',\n');
    writeFileSync(draft, `${JSON.stringify(rest).slice(0, -1)},"traceEvents":[\n${events}\n]}\n`);
    renameSync(draft, file);
  } catch (error) {
    rmSync(draft, { force: true });
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
function hasEnded({ host, pid }: TracePart): boolean {
  if (host !== hostname()) return false;
  if (pid === process.pid) return true;
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return (error as { code?: string }).code === 'ESRCH';
  }
}
