// Tracing of this process, if the setting `trace` names a file: begins once, on the main thread; threads that start later join in.
import { hostname } from 'node:os';
import { basename, resolve } from 'node:path';
import { isMainThread, setEnvironmentData } from 'node:worker_threads';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { addTraceSink } from '../core/trace.ts';
import type { Settings } from '../settings/settings.ts';
import { TRACED_THREADS } from '../threads/start-worker.ts';
import { createPart, describeRank, RingSink, type TraceFile } from './trace-rings.ts';

let file: TraceFile | undefined;

/** The file of this process, on its main thread; undefined if nothing is traced. */
export function currentTrace(): TraceFile | undefined {
  return file;
}

/** Place of a rank of a job. */
interface TracedRank {
  readonly rank: number;
  readonly size: number;
  readonly launcherPid: number | undefined;
}

/** Idempotent; a second file is not begun. Fails with WL_CONFIG if the file cannot be made. */
export function startTracing({ trace }: Pick<Settings, 'trace'>, place?: TracedRank): void {
  if (trace === '' || !isMainThread) return;
  if (file === undefined) {
    file = open(resolve(trace), place);
    const sink = RingSink.claim(file, 'main');
    if (sink !== undefined) addTraceSink(sink);
    setEnvironmentData(TRACED_THREADS, file);
  } else if (place !== undefined) describeRank(file, place.rank, place.size);
}

function open(trace: string, place: TracedRank | undefined): TraceFile {
  const { rank = -1, size = 0, launcherPid: launcher = 0 } = place ?? {};
  const program = process.argv[1] === undefined ? 'node' : basename(process.argv[1]);
  try {
    return createPart(trace, { rank, size, launcher, pid: process.pid, host: hostname(), program });
  } catch (error) {
    const { message } = asWeftlineError(error);
    const what = `Cannot write a part of the trace ${trace}: ${message}`;
    throw new WeftlineError(
      'WL_CONFIG',
      `${what}; name a file in a folder of a local file system that can be written`,
      {
        cause: error,
        details: { setting: 'trace', value: trace },
      },
    );
  }
}
