// Signals that are sent to npx or npm: these end their shell with them, and what runs in the shell hears nothing.
import { readFileSync } from 'node:fs';

const LOOK_EVERY_MS = 250;

/**
 * If npm has started this process: ends it as SIGTERM does, once the shell between them has gone. A process that was detached
 * from its parent (setsid, or `detached` of spawn) is to outlive it.
 */
export function endWithNpm(): void {
  if (process.env['npm_lifecycle_event'] === undefined || isDetached()) return;
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    process.kill(process.pid, 'SIGTERM');
  }, LOOK_EVERY_MS);
  timer.unref();
}

/** True of the first process of a process group; npm and its shell leave what they start in theirs. */
function isDetached(): boolean {
  try {
    // The name of the program, in brackets, may contain anything; state, parent and process group follow.
    const [, , , group] = readFileSync('/proc/self/stat', 'utf8').replace(/^.*\)/s, '').split(' ');
    return Number(group) === process.pid;
  } catch {
    // Not Linux.
    return false;
  }
}
