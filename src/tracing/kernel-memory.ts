// Where records of kernels lie while their process lives: a file in /dev/shm, since drivers register no memory of files on disks.
import { closeSync, fstatSync, ftruncateSync, openSync, readSync, unlinkSync } from 'node:fs';
import { KERNEL_RINGS } from './trace-layout.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { holdFile, isHeldFile } from '../native/held-file.ts';
import { mapSharedFile, reserveInFile } from '../native/memory-file.ts';

/** Not as the other files there are named: those are removed when they are old and nobody holds a lock on them. */
function pathOf(pid: number, ring: number): string {
  return `/dev/shm/weftline.trace.${pid}.${ring}`;
}

/** The address of that many bytes, zeroed, for a ring of this process; undefined where there is no room for them. */
export function mapKernelMemory(ring: number, bytes: number): number | undefined {
  const path = pathOf(process.pid, ring);
  // Of a process that had this number, and was killed; one that lives has it in another process-id namespace.
  if (isHeldFile(path)) return undefined;
  remove(path);
  try {
    const fd = openSync(path, 'wx+', 0o600);
    try {
      // The mapping keeps the lock.
      holdFile(fd);
      ftruncateSync(fd, bytes);
      if (reserveInFile(fd, 0, bytes)) return mapSharedFile(fd, bytes, false);
    } finally {
      closeSync(fd);
    }
  } catch {
    // There may be no such folder, or it is not ours.
  }
  remove(path);
  return undefined;
}

/**
 * Fills `records` with what a process of this host has left there; false if it has left nothing. Everybody may make files
 * there: only those of `owner`, the user of the process, and of this process's user count.
 */
export function readKernelMemory(pid: number, ring: number, owner: number, records: Uint8Array): boolean {
  try {
    const fd = openGuarded(pathOf(pid, ring), { owner: 'anyone' });
    try {
      const { uid } = fstatSync(fd);
      if (uid !== owner && uid !== process.geteuid?.()) return false;
      return readSync(fd, records, 0, records.length, 0) === records.length;
    } finally {
      closeSync(fd);
    }
  } catch {
    return false;
  }
}

/** Of a ring of this process, when its records are elsewhere. */
export function removeOwnKernelMemory(ring: number): void {
  remove(pathOf(process.pid, ring));
}

/** Of a process of this host that has ended, when its records are not wanted any more. */
export function removeKernelMemory(pid: number): void {
  for (let ring = 0; ring < KERNEL_RINGS; ring++) {
    const path = pathOf(pid, ring);
    if (!isHeldFile(path)) remove(path);
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // There is none, or what is there is not ours.
  }
}
