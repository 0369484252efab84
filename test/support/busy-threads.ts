// Whether threads of this process sleep, by what they do at many looks: no clock, so that a busy machine changes nothing.
import { readdirSync, readFileSync } from 'node:fs';

const LOOKS = 50;
const BETWEEN_LOOKS_MS = 10;

/**
 * Threads, but for this one, that are runnable at half of the looks or more; empty if all sleep. A thread that polls is
 * runnable at each look, however busy the machine is; one that waits for an event is at few. Nothing else of this thread
 * runs between the looks.
 */
export function busyThreads(): string[] {
  const seen = new Map<string, number>();
  const nap = new Int32Array(new SharedArrayBuffer(4));
  for (let look = 0; look < LOOKS; look++) {
    Atomics.wait(nap, 0, 0, BETWEEN_LOOKS_MS);
    for (const thread of runnableThreads()) seen.set(thread, (seen.get(thread) ?? 0) + 1);
  }
  return [...seen]
    .filter(([, count]) => count >= LOOKS / 2)
    .map(([thread, count]) => `thread ${thread} at ${count} of ${LOOKS} looks`);
}

function runnableThreads(): string[] {
  return readdirSync('/proc/self/task').filter((thread) => Number(thread) !== process.pid && stateOf(thread) === 'R');
}

function stateOf(thread: string): string | undefined {
  try {
    // The state stands behind the name, which is in parentheses.
    return /.*\) (\w)/s.exec(readFileSync(`/proc/self/task/${thread}/stat`, 'utf8'))?.[1];
  } catch {
    // It has ended since.
    return undefined;
  }
}
