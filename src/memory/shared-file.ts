// A file in /dev/shm that the ranks of one host map together: made by one of them, nameless as soon as all have it.
import { closeSync, constants, fstatSync, ftruncateSync, openSync, rmSync, statfsSync } from 'node:fs';
import { WeftlineError } from '../core/errors.ts';
import { reserveFile } from '../native/libc.ts';

export const SHARED_MEMORY_FOLDER = '/dev/shm';

export interface SharedFileSpec {
  readonly path: string;
  readonly bytes: number;
  /** What the bytes are made of, for errors: "4 windows of 940.0 MiB". */
  readonly purpose: string;
  readonly reserve: boolean;
}

/** Creates the file with all its bytes zero. Fails with WL_SHARED_MEMORY and leaves nothing behind. */
export function createSharedFile(spec: SharedFileSpec): number {
  checkRoom(spec);
  const fd = openSync(spec.path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, 0o600);
  try {
    ftruncateSync(fd, spec.bytes);
    if (spec.reserve) reserveFile(fd, spec.bytes);
    return fd;
  } catch (cause) {
    closeSync(fd);
    removeSharedFile(spec.path);
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `Cannot reserve ${mebibytes(spec.bytes)} in ${SHARED_MEMORY_FOLDER} for ${spec.purpose}`,
      {
        details: { bytes: spec.bytes },
        cause,
      },
    );
  }
}

/** Opens a file that a peer made. Fails with WL_SHARED_MEMORY when its size is not what was announced. */
export function openSharedFile(path: string, bytes: number): number {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDWR | constants.O_NOFOLLOW);
  } catch (cause) {
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `Cannot open the shared memory ${path} of this job: the ranks of one host must see the same ${SHARED_MEMORY_FOLDER} and run as the same user`,
      { details: { path }, cause },
    );
  }
  const { size } = fstatSync(fd);
  if (size === bytes) return fd;
  closeSync(fd);
  throw new WeftlineError('WL_SHARED_MEMORY', `The shared memory ${path} has ${size} bytes, ${bytes} were announced`, {
    details: { path, size, bytes },
  });
}

export function removeSharedFile(path: string): void {
  rmSync(path, { force: true });
}

function checkRoom({ bytes, purpose }: SharedFileSpec): void {
  let free: number;
  try {
    const { bavail, bsize } = statfsSync(SHARED_MEMORY_FOLDER);
    free = bavail * bsize;
  } catch (cause) {
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `This machine has no ${SHARED_MEMORY_FOLDER}: several ranks per host need it`,
      { cause },
    );
  }
  if (free >= bytes) return;
  throw new WeftlineError(
    'WL_SHARED_MEMORY',
    `${SHARED_MEMORY_FOLDER} has ${mebibytes(free)} free, ${purpose} need ${mebibytes(bytes)}: enlarge it (mount -o remount,size=…, docker run --shm-size=…) or lower the tokens per rank`,
    { details: { free, bytes } },
  );
}

export function mebibytes(bytes: number): string {
  return `${(bytes / 1_048_576).toFixed(1)} MiB`;
}
