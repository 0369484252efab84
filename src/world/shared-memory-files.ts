// The names of shared-memory files and their removal: those of one job at its end, those of dead jobs at the next start.
import { closeSync, openSync, readdirSync, statSync, unlinkSync } from 'node:fs';
import { isAnyByteLocked } from '../native/libc.ts';

export const SHARED_MEMORY_FOLDER = '/dev/shm';

/** Every file of weftline begins so; the job id follows. */
export const FILE_PREFIX = 'weftline-';

/** A job needs a moment between creating a file and locking it. */
const YOUNG_MS = 60_000;

/** Removes the files of the jobs whose id starts with the prefix. */
export function removeFilesOfJob(jobPrefix: string): void {
  for (const name of namesStartingWith(FILE_PREFIX + jobPrefix)) remove(name);
}

/** Removes old files that no living process holds a lock on; returns their names. Needs the native library only if there are any. */
export function removeStaleFiles(): string[] {
  return namesStartingWith(FILE_PREFIX).filter((name) => isOld(name) && !isHeld(name) && remove(name));
}

function namesStartingWith(prefix: string): string[] {
  try {
    return readdirSync(SHARED_MEMORY_FOLDER).filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}

function isOld(name: string): boolean {
  try {
    const { ctimeMs, mtimeMs } = statSync(`${SHARED_MEMORY_FOLDER}/${name}`);
    return Date.now() - Math.max(ctimeMs, mtimeMs) > YOUNG_MS;
  } catch {
    return false;
  }
}

/** A file that cannot be opened, another user's, counts as held. */
function isHeld(name: string): boolean {
  let fd: number;
  try {
    fd = openSync(`${SHARED_MEMORY_FOLDER}/${name}`, 'r+');
  } catch {
    return true;
  }
  try {
    return isAnyByteLocked(fd);
  } finally {
    closeSync(fd);
  }
}

function remove(name: string): boolean {
  try {
    unlinkSync(`${SHARED_MEMORY_FOLDER}/${name}`);
    return true;
  } catch {
    // Another rank was faster.
    return false;
  }
}
