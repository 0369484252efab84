// Whether the owner of a file lives: it holds a lock on the open file, which the kernel drops when the last descriptor and
// mapping of it are gone. Numbers of processes say nothing to processes that share files but not a process-id namespace.
import { closeSync } from 'node:fs';
import { openGuarded } from '../core/guarded-file.ts';
import { isAnyByteLocked, lockByte } from './libc.ts';

/**
 * Makes this process the holder of a file that it has just opened for writing: until the descriptor is closed and what was
 * mapped by it unmapped, or the process ends. False if another one holds it. Fails with WL_NATIVE where nothing can be locked.
 */
export function holdFile(fd: number): boolean {
  return lockByte(fd, 0);
}

/**
 * True while somebody holds a lock on the file, this process included. One that cannot be opened, because it is another
 * user's, or is a link or a pipe, counts as held: none of weftline's files is one. So does one whose locks cannot be told.
 */
export function isHeldFile(path: string): boolean {
  let fd: number | undefined;
  try {
    fd = openGuarded(path, { owner: 'anyone' });
    return isAnyByteLocked(fd);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ENOENT';
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}
