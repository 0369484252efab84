// The names of shared-memory files and their removal: those of one job at its end, those of dead jobs at the next start.
import { createHash } from 'node:crypto';
import { lstatSync, readdirSync, rmSync, unlinkSync } from 'node:fs';
import { isHeldFile } from '../native/libc.ts';

export const SHARED_MEMORY_FOLDER = '/dev/shm';

/** Every file of weftline begins so; a hash of the job follows. */
const FILE_PREFIX = 'weftline-';
const HASH_LENGTH = 20;

/** A job needs a moment between creating a file and locking it. */
const YOUNG_MS = 60_000;

interface StaleFileOptions {
  readonly folder?: string;
  /** Milliseconds since 1970. */
  readonly now?: number;
}

/** What names of files begin with whose ranks were started under this job prefix. Everybody may see it. */
export function filePrefixOf(jobPrefix: string): string {
  const hash = createHash('sha256')
    .update(JSON.stringify(['weftline files', jobPrefix]))
    .digest('hex');
  return FILE_PREFIX + hash.slice(0, HASH_LENGTH);
}

/** What the name of the launcher's own folder begins with; random characters follow. */
export function launcherFolderPrefix(jobPrefix: string): string {
  return `${SHARED_MEMORY_FOLDER}/${filePrefixOf(jobPrefix)}-launcher-`;
}

/** The file in the folder of a launcher that it holds a lock on as long as it lives. */
export function heldFileOf(launcherFolder: string): string {
  return `${launcherFolder}/failures`;
}

/** Removes the files of the ranks that were started under this job prefix. */
export function removeFilesOfJob(jobPrefix: string): void {
  for (const path of filesStartingWith(SHARED_MEMORY_FOLDER, filePrefixOf(jobPrefix))) remove(path);
}

/**
 * Removes old files of this user that no living process holds a lock on, and old folders of launchers that are gone;
 * returns their paths. Loads the native library only if there are any such files.
 */
export function removeStaleFiles(options: StaleFileOptions = {}): string[] {
  const { folder = SHARED_MEMORY_FOLDER, now = Date.now() } = options;
  return filesStartingWith(folder, FILE_PREFIX).filter((path) => {
    if (!isOwnAndOld(path, now)) return false;
    return /-launcher-[^-/]+$/.test(path) ? removeFolder(path) : !isHeldFile(path) && remove(path);
  });
}

function filesStartingWith(folder: string, prefix: string): string[] {
  try {
    const names = readdirSync(folder).filter((name) => name.startsWith(prefix));
    return names.map((name) => `${folder}/${name}`);
  } catch {
    return [];
  }
}

/** Folders of other users are not even opened: anybody could have every rank look at thousands. */
function isOwnAndOld(path: string, now: number): boolean {
  try {
    const { uid, ctimeMs, mtimeMs } = lstatSync(path);
    return uid === process.geteuid?.() && now - Math.max(ctimeMs, mtimeMs) > YOUNG_MS;
  } catch {
    return false;
  }
}

/** Leaves those of living launchers. */
function removeFolder(path: string): boolean {
  try {
    if (!lstatSync(path).isDirectory() || isHeldFile(heldFileOf(path))) return false;
    rmSync(path, { recursive: true, force: true });
    return true;
  } catch {
    return false;
  }
}

function remove(path: string): boolean {
  try {
    unlinkSync(path);
    return true;
  } catch {
    // Another rank was faster.
    return false;
  }
}
