// Opening files that others might have made: no link is followed, no pipe waited for, nobody's file believed unseen.
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readlinkSync,
  readSync,
  renameSync,
  type Stats,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { userInfo } from 'node:os';
import { dirname, isAbsolute, join } from 'node:path';
import { formatBytes } from './byte-size.ts';
import { WeftlineError } from './errors.ts';
import { printable } from './quote.ts';

/**
 * The owners that a file may have:
 * - `anyone`: it is looked at only;
 * - `folder`: this user's, root's, or that of whom its folder belongs to, who decides what lies there;
 * - `user`: this user's or root's, and nobody else may write to it: what it says is trusted, or run;
 * - `alone`: this user's, under one name, and nobody else may even read it.
 */
type FileOwner = 'anyone' | 'folder' | 'user' | 'alone';

interface FileRule {
  readonly owner: FileOwner;
  /** O_RDONLY, if nothing is given. */
  readonly flags?: number;
  /** The mode of a file that the flags let be made. */
  readonly mode?: number;
}

type Ownership = Pick<Stats, 'uid' | 'mode' | 'nlink'>;

const WRITABLE_BY_OTHERS = 0o022;
const USABLE_BY_OTHERS = 0o077;
const MODE_BITS = 0o777;
const STICKY = 0o1000;
/** A string can hold no more. */
const MAX_INPUT_BYTES = 2 ** 29 - 25;
const CHUNK_BYTES = 65_536;
/** Links that the system itself follows at most. */
const MAX_LINKS = 40;
/** Names that stand for what this process has open already. */
const ownDescriptor = /^(?:\/dev\/(?:std(?:in|out|err)|fd\/\d+)|\/proc\/self\/fd\/\d+)$/;

/** The descriptor of a regular file under a name that others can guess. Fails with WL_FILE, or the error of open. */
export function openGuarded(path: string, { owner, flags = constants.O_RDONLY, mode = 0o600 }: FileRule): number {
  return opened(path, owner, flags | constants.O_NOFOLLOW, mode);
}

/** What is to be run, from a folder that only this user and root can change: nobody else says which file has which name. */
export function readTrusted(folder: string, name: string): Buffer {
  const path = join(folder, name);
  const why = whyNotTrusted(folder);
  if (why !== undefined) throw unusable(path, `lies in a folder that ${why}`);
  return readAndClose(openGuarded(path, { owner: 'user' }), path, MAX_INPUT_BYTES);
}

/** Checks what was opened otherwise, with O_NOFOLLOW and O_NONBLOCK, by what its descriptor says of it. Fails with WL_FILE. */
export function checkOpened(path: string, facts: Stats, owner: FileOwner): void {
  const why = facts.isFile() ? whyNot(path, facts, owner) : `is ${kindOf(facts)}`;
  if (why !== undefined) throw unusable(path, why);
}

/** A file that the user has named, through links too; a pipe only if it is this process's own, as that of <(…). */
export function readInput(path: string, maxBytes = MAX_INPUT_BYTES): Buffer {
  const fd = ownDescriptor.test(path) ? openSync(path, constants.O_RDONLY) : opened(path, 'anyone', constants.O_RDONLY);
  return readAndClose(fd, path, maxBytes);
}

/** Why others could have changed what lies in the folder; undefined if they could not. Fails with the error of stat. */
export function whyNotTrusted(folder: string): string | undefined {
  const facts = lstatSync(folder);
  if (!facts.isDirectory()) return 'is no folder';
  const { uid, nlink } = facts;
  // Others can add files where the sticky bit is, but neither remove nor rename those of this user.
  const mode = (facts.mode & STICKY) === 0 ? facts.mode : facts.mode & ~WRITABLE_BY_OTHERS;
  return whyNot(folder, { uid, nlink, mode }, 'user');
}

interface Replacement {
  readonly mode?: number;
  /** The content is on disk before it has its name. */
  readonly isDurable?: boolean;
}

/** Gives the name to a new file with this content: whole or not at all, and whatever had the name before. Fails with the system's error. */
export function replaceFile(path: string, content: string | Uint8Array, options: Replacement = {}): void {
  // The path is not made by join(), which takes ".." behind a link for the folder that has the link.
  const draft = `${dirname(path)}/.weftline-${randomBytes(12).toString('hex')}`;
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  const fd = openSync(draft, flags, options.mode ?? 0o666);
  try {
    // Whatever the umask is, where a mode was asked for.
    if (options.mode !== undefined) fchmodSync(fd, options.mode);
    writeFileSync(fd, content);
    if (options.isDurable === true) fsyncSync(fd);
    renameSync(draft, path);
  } catch (error) {
    unlinkSync(draft);
    throw error;
  } finally {
    closeSync(fd);
  }
}

/**
 * Writes a file that the user has named. Links of this user and of root are followed, those of others are not. Fails with
 * WL_FILE, or the system's error.
 */
export function writeOutput(path: string, content: string | Uint8Array): void {
  writeThrough(path, content, 0);
}

/** One link at a time: each of a chain may belong to somebody else. `links`: those that led here. */
function writeThrough(path: string, content: string | Uint8Array, links: number): void {
  if (ownDescriptor.test(path)) return writeFileSync(path, content);
  const facts = lstatSync(path, { throwIfNoEntry: false });
  if (facts === undefined) return replaceFile(path, content);
  if (facts.isSymbolicLink()) {
    if (!isOwn(facts)) throw unusable(path, `is a symbolic link of user ${facts.uid}`);
    if (links === MAX_LINKS) throw unusable(path, `is a symbolic link behind ${MAX_LINKS} others`);
    const target = readlinkSync(path);
    return writeThrough(isAbsolute(target) ? target : `${dirname(path)}/${target}`, content, links + 1);
  }
  if (facts.isCharacterDevice()) return writeInPlace(path, content, constants.O_NONBLOCK);
  if (!facts.isFile()) throw unusable(path, `is ${kindOf(facts)}`);
  try {
    // What others let everybody do with their file says nothing of this user's.
    replaceFile(path, content, isOwn(facts) ? { mode: facts.mode & MODE_BITS } : {});
  } catch (error) {
    // A file that is mounted there, as containers do, cannot be replaced; others cannot mount any.
    if ((error as NodeJS.ErrnoException).code !== 'EBUSY') throw error;
    writeInPlace(path, content, constants.O_TRUNC);
  }
}

/** Makes a folder that only this user may enter, or keeps others from changing one that is there. Fails if it is not this user's. */
export function makeTrustedFolder(folder: string): void {
  makeFolder(folder, 0o700);
  const fd = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    const facts = fstatSync(fd);
    if (facts.uid !== ownUid(facts))
      throw unusable(folder, `belongs to user ${facts.uid}, not to user ${ownUid(facts)}`);
    if ((facts.mode & WRITABLE_BY_OTHERS) !== 0) fchmodSync(fd, 0o700);
  } finally {
    closeSync(fd);
  }
}

/** A folder with a random name, which only this user may enter, whatever the umask. Fails with the system's error. */
export function makePrivateFolder(prefix: string): string {
  const folder = mkdtempSync(prefix);
  chmodSync(folder, 0o700);
  return folder;
}

function writeInPlace(path: string, content: string | Uint8Array, flag: number): void {
  const fd = openSync(path, constants.O_WRONLY | constants.O_NOFOLLOW | flag);
  try {
    writeFileSync(fd, content);
  } finally {
    closeSync(fd);
  }
}

function opened(path: string, owner: FileOwner, flags: number, mode = 0o600): number {
  let fd: number;
  try {
    // A pipe would wait for its other end.
    fd = openSync(path, flags | constants.O_NONBLOCK | constants.O_NOCTTY, mode);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ELOOP') throw unusable(path, 'is a symbolic link', error);
    // A pipe that nobody reads, or a socket.
    if (code === 'ENXIO') throw unusable(path, 'is no regular file', error);
    throw error;
  }
  try {
    checkOpened(path, fstatSync(fd), owner);
    return fd;
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

function whyNot(path: string, facts: Ownership, owner: FileOwner): string | undefined {
  if (owner === 'anyone') return undefined;
  const mode = (facts.mode & MODE_BITS).toString(8).padStart(4, '0');
  if (owner === 'alone') {
    if (facts.uid !== ownUid(facts)) return `belongs to user ${facts.uid}, not to user ${ownUid(facts)}`;
    if (facts.nlink !== 1) return `has ${facts.nlink} names`;
    return (facts.mode & USABLE_BY_OTHERS) === 0 ? undefined : `has mode ${mode}: others may use it`;
  }
  const isOf = isOwn(facts) || (owner === 'folder' && statSync(dirname(path)).uid === facts.uid);
  if (!isOf) return `belongs to user ${facts.uid}, not to user ${ownUid(facts)} or root`;
  if (owner === 'folder' || (facts.mode & WRITABLE_BY_OTHERS) === 0) return undefined;
  return `has mode ${mode}: others may write to it (chmod go-w)`;
}

/** The file's own user on systems without user ids, of which nothing can be said. */
function ownUid({ uid }: Ownership): number {
  return process.geteuid?.() ?? uid;
}

function isOwn(facts: Ownership): boolean {
  return facts.uid === 0 || facts.uid === ownUid(facts);
}

function kindOf(facts: Stats): string {
  if (facts.isDirectory()) return 'a folder';
  if (facts.isFIFO()) return 'a named pipe';
  if (facts.isSocket()) return 'a socket';
  return 'a device';
}

function readAndClose(fd: number, path: string, maxBytes: number): Buffer {
  try {
    const { size } = fstatSync(fd);
    if (size > maxBytes) throw tooLong(path, maxBytes);
    const chunks: Buffer[] = [];
    for (let length = 0; ;) {
      const chunk = Buffer.allocUnsafe(Math.max(size - length, 0) + CHUNK_BYTES);
      const count = readSync(fd, chunk, 0, chunk.length, null);
      if (count === 0) return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, length);
      length += count;
      if (length > maxBytes) throw tooLong(path, maxBytes);
      chunks.push(chunk.subarray(0, count));
    }
  } finally {
    closeSync(fd);
  }
}

function tooLong(path: string, maxBytes: number): WeftlineError {
  return unusable(path, `has more than ${formatBytes(maxBytes)}`);
}

function unusable(path: string, why: string, cause?: unknown): WeftlineError {
  return new WeftlineError('WL_FILE', `${printable(path, 1024)} ${why}`, {
    details: { path, why },
    ...(cause === undefined ? {} : { cause }),
  });
}

/**
 * As mkdirSync() with `recursive`, which does not return where the system refuses a folder with ENOENT although its parent
 * exists, as in /proc. A folder that exists is fine. Fails with the error of mkdir.
 */
export function makeFolder(folder: string, mode = 0o777): void {
  try {
    mkdirSync(folder, { mode });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST' && statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true) return;
    const parent = dirname(folder);
    if (code !== 'ENOENT' || existsSync(parent)) throw error;
    makeFolder(parent, mode);
    makeFolder(folder, mode);
  }
}

/** The folder comes from the password database, not from HOME; undefined if the database has none. */
export function homeFolder(): string | undefined {
  try {
    const { homedir } = userInfo();
    return homedir.startsWith('/') ? homedir : undefined;
  } catch {
    return undefined;
  }
}
