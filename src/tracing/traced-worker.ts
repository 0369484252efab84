// Entry of threads while the process is traced: takes a ring for the thread, then runs the module that it was started for.
import { getEnvironmentData, threadId } from 'node:worker_threads';
import { addTraceSink } from '../core/trace.ts';
import { TRACED_THREADS } from '../threads/start-worker.ts';
import { RingSink, type TraceFile } from './trace-rings.ts';

const [, , entry, name] = process.argv;
const sink = RingSink.claim(getEnvironmentData(TRACED_THREADS) as unknown as TraceFile, `${name} ${threadId}`);
if (sink !== undefined) addTraceSink(sink);
process.argv.length = 2;
await import(entry as string);
