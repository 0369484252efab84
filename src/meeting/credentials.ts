// What a process proves itself with when it meets another one: a token, or the secret of its user on this host.
import { hkdfSync, randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  type Stats,
  statSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { WeftlineError } from '../core/errors.ts';
import { homeFolder } from '../core/guarded-file.ts';

// The secret that all processes of one user on one host share, in a file that nobody else can read.

const FOLDER_NAME = '.weftline';
const FILE_NAME = 'secret';
const SECRET_BYTES = 32;
const OTHERS = 0o077;
const WRITABLE_BY_OTHERS = 0o022;
/** Why a secret cannot be made at one place, so that the next one is taken. */
const unusable: readonly string[] = ['EACCES', 'EPERM', 'EROFS', 'ENOENT', 'ENOSPC', 'EDQUOT', 'ENOTDIR'];

/** Path of the secret, for errors, and its bytes. */
interface UserSecret {
  readonly path: string;
  readonly bytes: Uint8Array;
}

/**
 * Reads the secret of the user that this process runs as, and makes it if there is none. The place depends on the
 * user's entry in the password database, not on the environment, so that a shell, cron and sudo agree on it: the home
 * folder if the user owns it and can write there, else a folder of /tmp. Fails with WL_CONFIG if something there is not
 * as it must be, WL_UNSUPPORTED on systems without user ids.
 */
export function readUserSecret(): UserSecret {
  const uid = ownUid();
  const home = homeOf(uid);
  if (home !== undefined) {
    const secret = tryFolder(`${home}/${FOLDER_NAME}`, uid);
    if (secret !== undefined) return secret;
  }
  return readSecretIn(`/tmp/weftline-${uid}`, uid);
}

/** The same in one folder, which is made if it is not there. */
export function readSecretIn(folder: string, uid: number): UserSecret {
  const path = `${folder}/${FILE_NAME}`;
  try {
    makeFolder(folder);
    checkFolder(folder, uid);
    let bytes = readSecretFile(path, uid);
    if (bytes === undefined) {
      makeSecretFile(folder, path);
      bytes = readSecretFile(path, uid);
    }
    if (bytes !== undefined) return { path, bytes };
    throw wrong(path, 'it vanishes while it is made');
  } catch (error) {
    if (error instanceof WeftlineError) throw error;
    throw wrong(path, (error as Error).message, error);
  }
}

function ownUid(): number {
  const uid = process.geteuid?.();
  if (uid !== undefined) return uid;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    'This system has no user ids by which processes of one user could recognize each other: give all of them the same token (option token, or WEFTLINE_TOKEN)',
  );
}

const homes = new Map<number, string | undefined>();

/** The home folder, unless others can replace files in it. */
function homeOf(uid: number): string | undefined {
  if (!homes.has(uid)) homes.set(uid, homeFolder());
  const home = homes.get(uid);
  if (home === undefined) return undefined;
  try {
    const facts = statSync(home);
    return facts.isDirectory() && facts.uid === uid && (facts.mode & WRITABLE_BY_OTHERS) === 0 ? home : undefined;
  } catch {
    return undefined;
  }
}

/** Undefined if the folder cannot be made or written. */
function tryFolder(folder: string, uid: number): UserSecret | undefined {
  try {
    return readSecretIn(folder, uid);
  } catch (error) {
    const cause = (error as Error).cause as NodeJS.ErrnoException | undefined;
    // Tries the next place only if this one could not be made: a user must hear of a file that is there but wrong.
    const isMade = cause?.syscall === 'mkdir' || cause?.syscall === 'link' || cause?.syscall === 'write';
    const isDraft = cause?.syscall === 'open' && cause.path?.startsWith(`${folder}/${FILE_NAME}.`) === true;
    if ((isMade || isDraft) && unusable.includes(cause?.code ?? '')) return undefined;
    throw error;
  }
}

function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

function checkFolder(folder: string, uid: number): void {
  const fd = openNoLink(folder, constants.O_RDONLY | constants.O_DIRECTORY, 'a folder');
  try {
    checkOwner(folder, fstatSync(fd), { uid, mode: '0700' });
  } finally {
    closeSync(fd);
  }
}

/** Undefined if there is none. */
function readSecretFile(path: string, uid: number): Uint8Array | undefined {
  let fd: number;
  try {
    // A FIFO in its place must not block.
    fd = openNoLink(path, constants.O_RDONLY | constants.O_NONBLOCK, 'a file');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const facts = fstatSync(fd);
    if (!facts.isFile()) throw wrong(path, 'it is not a regular file');
    checkOwner(path, facts, { uid, mode: '0600' });
    const bytes = new Uint8Array(SECRET_BYTES + 1);
    const length = readSync(fd, bytes, 0, bytes.length, 0);
    if (length !== SECRET_BYTES) throw wrong(path, `it must have ${SECRET_BYTES} bytes`);
    return bytes.slice(0, SECRET_BYTES);
  } finally {
    closeSync(fd);
  }
}

/** Another process may do so at the same time: the first link wins, and the name never shows a file that is half written. */
function makeSecretFile(folder: string, path: string): void {
  const draft = `${folder}/${FILE_NAME}.${process.pid}.${randomBytes(6).toString('hex')}`;
  const fd = openSync(draft, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW, 0o600);
  try {
    // Whatever the process's umask is.
    fchmodSync(fd, 0o600);
    writeSync(fd, randomBytes(SECRET_BYTES));
    linkSync(draft, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    closeSync(fd);
    unlinkSync(draft);
  }
}

function openNoLink(path: string, flags: number, what: string): number {
  try {
    return openSync(path, flags | constants.O_NOFOLLOW);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ELOOP') throw wrong(path, 'it is a symbolic link');
    // A symbolic link to a folder fails like this as well.
    if (code === 'ENOTDIR') throw wrong(path, `it is not ${what}`);
    throw error;
  }
}

function checkOwner(path: string, facts: Stats, want: { readonly uid: number; readonly mode: string }): void {
  if (facts.uid !== want.uid) throw wrong(path, `it belongs to user ${facts.uid}, not to user ${want.uid}`);
  if ((facts.mode & OTHERS) === 0) return;
  const mode = (facts.mode & 0o777).toString(8).padStart(4, '0');
  throw wrong(path, `its mode is ${mode}, expected ${want.mode}: others may have read or changed it`);
}

function wrong(path: string, why: string, cause?: unknown): WeftlineError {
  return new WeftlineError(
    'WL_CONFIG',
    `Cannot use ${path}, by which processes of one user recognize each other: ${why}. Remove it, and a new one is made; or give all processes the same token (openssl rand -hex 32) by WEFTLINE_TOKEN or the option token`,
    { details: { path, why }, ...(cause === undefined ? {} : { cause }) },
  );
}

/** `user`: the peer runs as the same user on the same host. It is said aloud; it is no secret. */
export type CredentialKind = 'token' | 'user';

export interface Credential {
  readonly kind: CredentialKind;
  /** The key of proofs. It never leaves the process. */
  readonly key: Uint8Array;
}

/** Read again at each meeting: the secret of a user is a file, which may be made anew. */
export interface Credentials {
  readonly kind: CredentialKind;
  read(): Credential;
}

const KEY_BYTES = 32;
const SALT = 'weftline';

/** Gives the credentials of a token, or if it is empty, of the user. `scope` keeps what one user runs apart, such as jobs. */
export function credentialsOf(token: string, scope = ''): Credentials {
  if (token === '') return { kind: 'user', read: () => userCredential(readUserSecret(), scope) };
  const credential = tokenCredential(token);
  return { kind: 'token', read: () => credential };
}

export function tokenCredential(token: string): Credential {
  return { kind: 'token', key: derive(Buffer.from(token), SALT, 'token') };
}

/** The boot makes a copy of the file worthless elsewhere, also a home folder that several hosts share. */
export function userCredential(secret: UserSecret, scope = ''): Credential {
  return { kind: 'user', key: derive(secret.bytes, `${SALT} ${bootId()}`, `user ${scope}`) };
}

/** A key of its own for each purpose, from which neither the secret nor other keys can be told. */
export function derive(secret: Uint8Array, salt: string, purpose: string, bytes: number = KEY_BYTES): Uint8Array {
  return new Uint8Array(hkdfSync('sha256', secret, salt, `weftline/${purpose}`, bytes));
}

/** A random number that the kernel draws at each boot; the same in all containers of a host. */
export function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return 'no-boot-id';
  }
}
