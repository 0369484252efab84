// Tracing of this process, if the setting `trace` names a file: begins once, on the main thread; threads that start later join in.
import { hostname } from 'node:os';
import { basename, resolve } from 'node:path';
import { isMainThread, setEnvironmentData } from 'node:worker_threads';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { addTraceSink } from '../core/trace.ts';
import type { Settings } from '../settings/settings.ts';
import { TRACED_THREADS } from '../threads/start-worker.ts';
import { partPath } from './trace-parts.ts';
import { RingSink } from './ring-sink.ts';
import { createTraceFile, describeRank } from './trace-rings.ts';

let address: number | undefined;

/**
 * Idempotent; a second file is not begun. Fails with WL_CONFIG if the file cannot be made.
 * @param place Of a rank of a job.
 */
export function startTracing(
  { trace }: Pick<Settings, 'trace'>,
  place?: { readonly rank: number; readonly size: number },
): void {
  if (trace === '' || !isMainThread) return;
  if (address === undefined) {
    address = open(resolve(trace), place ?? { rank: -1, size: 0 });
    const sink = RingSink.claim(address, 'main');
    if (sink !== undefined) addTraceSink(sink);
    setEnvironmentData(TRACED_THREADS, address);
  } else if (place !== undefined) describeRank(address, place.rank, place.size);
}

function open(file: string, place: { readonly rank: number; readonly size: number }): number {
  const path = partPath(file, hostname(), process.pid);
  const program = process.argv[1] === undefined ? 'node' : basename(process.argv[1]);
  try {
    return createTraceFile(path, { ...place, pid: process.pid, host: hostname(), program });
  } catch (error) {
    const { message } = asWeftlineError(error);
    throw new WeftlineError(
      'WL_CONFIG',
      `Cannot write the trace ${path}: ${message}; name a file in a folder of a local file system`,
      {
        cause: error,
        details: { setting: 'trace', value: file },
      },
    );
  }
}
