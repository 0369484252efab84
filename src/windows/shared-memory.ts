// Host memory that other processes of this host can map: a file without a name, reached through its owner's /proc entry.
import { closeSync, constants, fstatSync, ftruncateSync, openSync, type Stats, statSync } from 'node:fs';
import { formatBytes } from '../core/byte-size.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { viewAt } from '../native/library.ts';
import { createMemoryFile, mapSharedFile, unmap } from '../native/memory-file.ts';

/** How another process finds the memory. Inode and device keep it from taking another file for it. */
export interface SharedMemoryName {
  readonly pid: number;
  readonly fd: number;
  readonly device: number;
  readonly inode: number;
  readonly bytes: number;
}

/** A view of more aborts Node 20. */
const MAX_VIEW_BYTES = 2 ** 32 - 65_536;

/**
 * Never has a path: when the last process that has it open or mapped ends, however it ends, it is gone. Unlike files of
 * /dev/shm it is not bounded by the size of that file system.
 */
export class SharedMemory implements Disposable {
  readonly name: SharedMemoryName;
  readonly fd: number;
  readonly address: number;
  readonly bytes: number;
  #disposed = false;

  /** Zeroed pages. `populate` sets them up now. Fails with WL_SHARED_MEMORY. */
  static create(purpose: string, bytes: number, populate: boolean): SharedMemory {
    if (!Number.isInteger(bytes) || bytes < 1 || bytes > MAX_VIEW_BYTES) {
      const allowed = `1 to ${MAX_VIEW_BYTES} (${formatBytes(MAX_VIEW_BYTES)})`;
      throw invalidArgument('bytes of shared memory', bytes, allowed);
    }
    let fd: number | undefined;
    try {
      fd = createMemoryFile(`weftline-${purpose}`);
      ftruncateSync(fd, bytes);
      const { dev: device, ino: inode } = fstatSync(fd);
      const name = { pid: process.pid, fd, device, inode, bytes };
      return new SharedMemory(name, fd, mapSharedFile(fd, bytes, populate));
    } catch (cause) {
      if (fd !== undefined) closeSync(fd);
      throw new WeftlineError(
        'WL_SHARED_MEMORY',
        `Cannot make ${formatBytes(bytes)} of shared memory for ${purpose}: ${(cause as Error).message}`,
        { details: { purpose, bytes }, cause },
      );
    }
  }

  /**
   * Maps another process's memory. Fails with WL_PEER_LOST when it is gone, with WL_SHARED_MEMORY when it cannot be
   * reached or belongs to another user, which root could open; `owner` is how errors call the process.
   */
  static open(name: SharedMemoryName, owner: string): SharedMemory {
    const fd = openSharedMemory(name, owner);
    try {
      return new SharedMemory(name, fd, mapSharedFile(fd, name.bytes, false));
    } catch (cause) {
      closeSync(fd);
      throw new WeftlineError('WL_SHARED_MEMORY', `Cannot map ${formatBytes(name.bytes)} of ${owner}`, { cause });
    }
  }

  private constructor(name: SharedMemoryName, fd: number, address: number) {
    this.name = name;
    this.fd = fd;
    this.address = address;
    this.bytes = name.bytes;
  }

  /** The memory in place; no view of it may be used after disposal. */
  buffer(): ArrayBuffer {
    return viewAt(this.address, this.bytes);
  }

  contains(address: number, bytes: number): boolean {
    return address >= this.address && address + bytes <= this.address + this.bytes;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    unmap(this.address, this.bytes);
    closeSync(this.fd);
  }
}

/** A descriptor of another process's memory, which the caller owns. Fails as SharedMemory.open() does. */
export function openSharedMemory({ pid, fd, device, inode, bytes }: SharedMemoryName, owner: string): number {
  const path = `/proc/${pid}/fd/${fd}`;
  const isIt = (found: Stats): boolean => {
    if (found.dev !== device || found.ino !== inode || found.size !== bytes) return false;
    // The owner can change its size, and so end processes that have it mapped.
    const uid = process.geteuid?.() ?? found.uid;
    if (found.uid === uid) return true;
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `The memory of ${owner} belongs to user ${found.uid}, this process runs as ${uid}: both must run as the same user`,
      { details: { path, uid: found.uid, expected: uid } },
    );
  };
  let opened: number | undefined;
  try {
    // Looked at before it is opened: opening a pipe or a terminal of a stranger could have effects.
    if (isIt(statSync(path))) opened = openSync(path, constants.O_RDWR);
    if (opened !== undefined && isIt(fstatSync(opened))) return opened;
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code !== 'ENOENT' && code !== 'ESRCH') {
      if (opened !== undefined) closeSync(opened);
      if (cause instanceof WeftlineError) throw cause;
      throw new WeftlineError(
        'WL_SHARED_MEMORY',
        `Cannot open the memory of ${owner} (${path}: ${code}): both processes must run as the same user, and that user must be able to see the other's /proc entry`,
        { details: { path, code }, cause },
      );
    }
  }
  if (opened !== undefined) closeSync(opened);
  throw new WeftlineError(
    'WL_PEER_LOST',
    `${owner} is gone, or no longer has the memory that it announced: its process ended, or its metadata is of an earlier run`,
    { details: { peer: owner, pid } },
  );
}
