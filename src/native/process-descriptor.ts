// Processes of this host: which life of one a number means, and a descriptor that is readable once it has ended.
import { readFileSync } from 'node:fs';
import { lazyFunction, linuxLibrary } from './library.ts';

const syscallFunction = lazyFunction(linuxLibrary, 'int64_t syscall(int64_t, int64_t, int64_t)');

const PIDFD_OPEN = 434;
/** Of /proc/PID/stat, behind the name, which may hold spaces. */
const STARTED_FIELD = 19;

/** A descriptor of the process; -1 if there is none, or the kernel (before 5.3) cannot. The caller closes it. */
export function openProcess(process: number): number {
  return Math.max(-1, Number(syscallFunction()(PIDFD_OPEN, process, 0)));
}

/** When the process began, in ticks since boot; undefined if it cannot be seen from here. */
export function startOfProcess(process: number): string | undefined {
  try {
    const text = readFileSync(`/proc/${process}/stat`, 'utf8');
    return text.slice(text.lastIndexOf(')') + 2).split(' ')[STARTED_FIELD];
  } catch {
    return undefined;
  }
}
