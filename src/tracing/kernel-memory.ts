// Where records of kernels lie while their process lives: a file in /dev/shm, since drivers register no memory of files on disks.
import { closeSync, constants, ftruncateSync, openSync, readSync, rmSync } from 'node:fs';
import { KERNEL_RINGS } from '../abi/kernel-trace.ts';
import { mapSharedFile, reserveInFile } from '../native/memory-file.ts';

/** Not as the other files there are named: those are removed when they are old and nobody holds a lock on them. */
function pathOf(pid: number, ring: number): string {
  return `/dev/shm/weftline.trace.${pid}.${ring}`;
}

/** The address of that many bytes, zeroed, for a ring of this process; undefined where there is no room for them. */
export function mapKernelMemory(ring: number, bytes: number): number | undefined {
  const path = pathOf(process.pid, ring);
  try {
    // Of a process that had this number, and was killed.
    rmSync(path, { force: true });
    const fd = openSync(path, 'wx+', 0o600);
    try {
      ftruncateSync(fd, bytes);
      if (reserveInFile(fd, 0, bytes)) return mapSharedFile(fd, bytes, false);
    } finally {
      closeSync(fd);
    }
  } catch {
    // There may be no such folder, or it is not ours.
  }
  rmSync(path, { force: true });
  return undefined;
}

/** Fills `records` with what a process of this host has left there; false if it has left nothing. */
export function readKernelMemory(pid: number, ring: number, records: Uint8Array): boolean {
  try {
    const fd = openSync(pathOf(pid, ring), constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      return readSync(fd, records, 0, records.length, 0) === records.length;
    } finally {
      closeSync(fd);
    }
  } catch {
    return false;
  }
}

/** Of a process of this host, all or some, when its records are elsewhere or are not wanted any more. */
export function removeKernelMemory(pid: number, ...rings: readonly number[]): void {
  const which = rings.length > 0 ? rings : Array.from({ length: KERNEL_RINGS }, (_, ring) => ring);
  for (const ring of which) rmSync(pathOf(pid, ring), { force: true });
}
