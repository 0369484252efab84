// A file in /dev/shm that the ranks of one host map together: made by one of them, nameless as soon as all have it.
import { closeSync, constants, fstatSync, ftruncateSync, openSync, rmSync, statfsSync } from 'node:fs';
import { formatBytes } from '../core/byte-size.ts';
import { WeftlineError } from '../core/errors.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { reserveFile } from '../native/libc.ts';
import { settingsTable } from '../settings/settings.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';

export const MORE_ROOM = 'enlarge it (mount -o remount,size=…, docker run --shm-size=…) or lower the tokens per rank';

interface SharedFileSpec {
  readonly path: string;
  readonly bytes: number;
  /** What the bytes are made of, for errors: "4 windows of 940.0 MiB". */
  readonly purpose: string;
  readonly reserve: boolean;
}

/** Creates the file with all its bytes zero. Fails with WL_SHARED_MEMORY and leaves nothing behind. */
export function createSharedFile(spec: SharedFileSpec): number {
  checkRoom(spec);
  let fd: number | undefined;
  try {
    fd = openSync(spec.path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, 0o600);
    ftruncateSync(fd, spec.bytes);
    if (spec.reserve) reserveFile(fd, spec.bytes);
    return fd;
  } catch (cause) {
    if (fd !== undefined) {
      closeSync(fd);
      removeSharedFile(spec.path);
    }
    throw cannotCreate(spec, cause);
  }
}

/** What to do, by the system's name of the error. */
const remedies: Readonly<Record<string, string>> = {
  ENOSPC: MORE_ROOM,
  EDQUOT: MORE_ROOM,
  ENOMEM: "raise the memory limit of this machine's control group, or lower the tokens per rank",
  EFBIG: 'raise "ulimit -f", or lower the tokens per rank',
  EROFS: 'mount it writable (mount -o remount,rw …, docker run without --read-only or with --tmpfs)',
  EACCES: 'let this user write there (chmod 1777)',
  EPERM: 'let this user write there (chmod 1777)',
  EMFILE: 'raise "ulimit -n"',
  EOPNOTSUPP: `mount a tmpfs there, or set ${settingsTable.reserveSharedMemory.env}=0`,
};

function cannotCreate({ path, bytes, purpose }: SharedFileSpec, cause: unknown): WeftlineError {
  const { code, message, details } = cause as NodeJS.ErrnoException & {
    readonly details?: { readonly name?: unknown };
  };
  const name = cause instanceof WeftlineError ? String(details?.name) : String(code);
  const remedy = remedies[name] ?? `it must be a tmpfs that this user may write to`;
  return new WeftlineError(
    'WL_SHARED_MEMORY',
    `Cannot reserve ${formatBytes(bytes)} in ${SHARED_MEMORY_FOLDER} for ${purpose}: ${message}; ${remedy}`,
    { details: { path, bytes, name }, cause },
  );
}

/** Opens a file that a peer made. Fails with WL_SHARED_MEMORY when its size is not what was announced. */
export function openSharedFile(path: string, bytes: number): number {
  let fd: number;
  try {
    fd = openGuarded(path, { owner: 'user', flags: constants.O_RDWR });
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
  throw new WeftlineError(
    'WL_SHARED_MEMORY',
    `The shared memory ${path} has ${size} bytes, expected ${bytes} as announced`,
    {
      details: { path, size, bytes },
    },
  );
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
    `${SHARED_MEMORY_FOLDER} has ${formatBytes(free)} free, ${purpose} need ${formatBytes(bytes)}: ${MORE_ROOM}`,
    { details: { free, bytes } },
  );
}
