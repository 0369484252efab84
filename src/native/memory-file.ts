// Files that live in memory and have no name: made, mapped and unmapped. Whatever ends their processes frees them.
import { constants, openSync } from 'node:fs';
import { nativeError as failed } from './library.ts';
import { systemCall } from './system-call.ts';
import { closeDescriptor } from './udp.ts';

const memfdFunction = systemCall('int memfd_create(const char*, uint)');
const mmapFunction = systemCall('intptr_t mmap(intptr_t, size_t, int, int, int, int64_t)');
const munmapFunction = systemCall('int munmap(intptr_t, size_t)');
const madviseFunction = systemCall('int madvise(intptr_t, size_t, int)');

const fallocateFunction = systemCall('int fallocate(int, int, int64_t, int64_t)');

const MFD_CLOEXEC = 1;
/** No room for it, or no more than a quota. */
const ENOSPC = 28;
const EDQUOT = 122;
const PROT_READ_WRITE = 3;
const MAP_SHARED = 1;
const MADV_HUGEPAGE = 14;
const MADV_POPULATE_WRITE = 23;

/** A descriptor of a new, empty file. `name` is only shown, in /proc/PID/maps. */
export function createMemoryFile(name: string): number {
  const fd: number = memfdFunction()(name, MFD_CLOEXEC);
  if (fd < 0) throw failed('memfd_create', `creating the memory file ${name}`, fd);
  return process.versions['deno'] === undefined ? fd : reopened(fd);
}

/** Deno's functions of files take only descriptors that they opened themselves. */
function reopened(fd: number): number {
  try {
    return openSync(`/proc/self/fd/${fd}`, constants.O_RDWR);
  } finally {
    closeDescriptor(fd);
  }
}

/** Maps the first bytes of a file, shared with all who map it; returns the address. `populate` sets up all pages now. */
export function mapSharedFile(fd: number, bytes: number, populate: boolean): number {
  const address: number = mmapFunction()(0, bytes, PROT_READ_WRITE, MAP_SHARED, fd, 0);
  if (address < 0) throw failed('mmap', `mapping ${bytes} bytes of a memory file`, address);
  madviseFunction()(address, bytes, MADV_HUGEPAGE);
  // Kernels before 5.14 do not know this advice; pages are then set up as they are touched.
  if (populate) madviseFunction()(address, bytes, MADV_POPULATE_WRITE);
  return address;
}

/** Room on the disk for a part of a file. False if there is none; file systems that reserve nothing are believed. */
export function reserveInFile(fd: number, offset: number, bytes: number): boolean {
  const result: number = fallocateFunction()(fd, 0, offset, bytes);
  return result !== -ENOSPC && result !== -EDQUOT;
}

/** No view of the memory may be used any more. */
export function unmap(address: number, bytes: number): void {
  const result: number = munmapFunction()(address, bytes);
  if (result !== 0) throw failed('munmap', `unmapping ${bytes} bytes`, result);
}
