// Compiled kernels on disk: one folder per key that appears whole or not at all, and is not believed without its hash.
import { createHash, randomBytes } from 'node:crypto';
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { KernelText } from './kernel-text.ts';

const CUBIN = 'kernel.cubin';
const HASH = 'kernel.cubin.sha256';

/** The folder that the setting `cacheFolder` names, or the user's own by the XDG rules. */
export function resolveCacheFolder(
  setting: string,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  if (setting !== '') return setting;
  const base = environment['XDG_CACHE_HOME'];
  // The rules say that a relative path is to be ignored.
  return join(base?.startsWith('/') ? base : join(environment['HOME'] ?? homedir(), '.cache'), 'weftline');
}

/** Everything that the machine code depends on. */
export function cacheKey(text: KernelText, flags: readonly string[], compilerVersion: string): string {
  return createHash('sha256')
    .update(JSON.stringify([sourceHash(text, flags), compilerVersion]))
    .digest('hex');
}

/** The text of a kernel and all its headers, and the flags, the architecture among them. */
export function sourceHash(text: KernelText, flags: readonly string[]): string {
  const headers = Object.entries(text.headers).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return sha256(JSON.stringify([text.name, text.text, headers, flags]));
}

export function sha256(bytes: Uint8Array | string): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export class CubinCache {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = join(folder, 'kernels');
  }

  /** The cubin of that key; undefined when there is none, or what is there is damaged. */
  read(key: string): Uint8Array | undefined {
    const folder = join(this.#folder, key);
    try {
      const cubin = readFileSync(join(folder, CUBIN));
      const hash = readFileSync(join(folder, HASH), 'utf8');
      return sha256(cubin) === hash ? cubin : undefined;
    } catch {
      return undefined;
    }
  }

  /**
   * Keeps a cubin. Another process may do the same at the same moment: one of them wins, and both hold the same code.
   * Returns false when the folder cannot be written; a cache that is missing only costs time.
   */
  write(key: string, cubin: Uint8Array): boolean {
    const temporary = join(this.#folder, `.new-${process.pid}-${randomBytes(6).toString('hex')}`);
    try {
      mkdirSync(temporary, { recursive: true });
    } catch {
      return false;
    }
    try {
      writeDurably(join(temporary, CUBIN), cubin);
      writeDurably(join(temporary, HASH), sha256(cubin));
      syncFolder(temporary);
      this.#publish(temporary, key);
      syncFolder(this.#folder);
      return true;
    } catch {
      return false;
    } finally {
      rmSync(temporary, { recursive: true, force: true });
    }
  }

  /** A folder that exists is another process's work, unless it is damaged: then it makes room. */
  #publish(temporary: string, key: string): void {
    const final = join(this.#folder, key);
    try {
      renameSync(temporary, final);
    } catch (error) {
      if (this.read(key) !== undefined) return;
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
      renameSync(final, `${temporary}-damaged`);
      rmSync(`${temporary}-damaged`, { recursive: true, force: true });
      renameSync(temporary, final);
    }
  }
}

function writeDurably(path: string, content: Uint8Array | string): void {
  writeFileSync(path, content, { flush: true });
}

function syncFolder(path: string): void {
  const fd = openSync(path, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
