// Loaded by Node before the script of a rank that weftline's launcher starts: what ends it before join() is noted too.
import { isMainThread } from 'node:worker_threads';
import { readEnvironment } from './environment.ts';
import { reportFailures } from './failure-log.ts';

// What the script starts inherits its variables and, if forked, its flags, but is no rank.
if (isMainThread && process.env['WEFTLINE_LAUNCHER_PID'] === String(process.ppid)) {
  const { rank, failureLog } = readEnvironment();
  if (failureLog !== undefined) reportFailures({ rank, log: failureLog });
}
