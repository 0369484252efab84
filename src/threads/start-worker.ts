// The one place that starts threads.
import { getEnvironmentData, Worker, type WorkerOptions } from 'node:worker_threads';
import { packageFile } from '../core/package-file.ts';
import { guardWorker } from '../native/library.ts';

/** Key of `setEnvironmentData`: the address of the rings, while this process is traced. */
export const TRACED_THREADS = 'weftline-traced-threads';

interface StartOptions extends Pick<WorkerOptions, 'workerData' | 'trackUnmanagedFds'> {
  /** What debuggers and profilers show, after `weftline-`. */
  readonly name: string;
}

/**
 * Starts a thread that runs a module. It keeps the process alive until `unref()` is called.
 *
 * The thread gets no command line flags of the process: `--input-type` makes every module of a thread fail to load, and
 * what `--import` or `--require` preload belongs to the program, not to a thread of the library. Flags of the whole
 * process, such as V8's, hold for threads anyway.
 */
export function startWorker(entry: URL, { name, ...options }: StartOptions): Worker {
  const given = { ...options, name: `weftline-${name}`, execArgv: [] };
  const isTraced = getEnvironmentData(TRACED_THREADS) !== undefined;
  const worker = isTraced
    ? new Worker(packageFile('../tracing/traced-worker.js', import.meta.url), { ...given, argv: [entry.href, name] })
    : new Worker(entry, given);
  guardWorker(worker);
  return worker;
}
