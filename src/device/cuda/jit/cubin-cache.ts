// Compiled kernels on disk: one folder per key that appears whole or not at all, and is not believed without its hash.
import { createHash, randomBytes } from 'node:crypto';
import { closeSync, fsyncSync, openSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { basename, isAbsolute, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { homeFolder, makeTrustedFolder, readTrusted, replaceFile, whyNotTrusted } from '../../../core/guarded-file.ts';
import { packageFile } from '../../../core/package-file.ts';

// The text of our kernels and of all headers they may include, as the build put it beside the code.

/** dist/kernels/cuda; this file runs from dist/device/cuda/jit. */
export function kernelFolder(): string {
  return fileURLToPath(packageFile('../../../kernels/cuda', import.meta.url));
}

export interface KernelText {
  /** What the compiler's messages call it. */
  readonly name: string;
  readonly text: string;
  /** Texts of headers by their name in #include. */
  readonly headers: Readonly<Record<string, string>>;
}

export function readKernelText(file: string): KernelText {
  return {
    name: `kernels/cuda/${file}`,
    text: readFileSync(`${kernelFolder()}/${file}`, 'utf8'),
    headers: ourHeaders(),
  };
}

/** All of include/, for our kernels and for those of users. */
export function ourHeaders(): Readonly<Record<string, string>> {
  return (allHeaders ??= readHeaders());
}

/** Names of headers as #include has them. */
export function headerNames(): string[] {
  const names = readdirSync(`${kernelFolder()}/include`, { recursive: true, encoding: 'utf8' });
  return names.filter((name) => name.endsWith('.cuh')).toSorted();
}

let allHeaders: Readonly<Record<string, string>> | undefined;

function readHeaders(): Record<string, string> {
  return Object.fromEntries(
    headerNames().map((name) => [name, readFileSync(`${kernelFolder()}/include/${name}`, 'utf8')]),
  );
}

const CUBIN = 'kernel.cubin';
const HASH = 'kernel.cubin.sha256';
/** What is kept is run: nobody else may change it. */
const kept = { mode: 0o600, isDurable: true };

/** The folder that the setting `cacheFolder` names, or the user's own by the XDG rules; undefined without a home folder. */
export function resolveCacheFolder(
  setting: string,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string | undefined {
  if (setting !== '') return resolve(setting);
  // The rules say that a relative path is to be ignored; a cache must not appear in whatever folder the process runs in.
  const { XDG_CACHE_HOME: base = '', HOME: given = '' } = environment;
  if (isAbsolute(base)) return join(base, 'weftline');
  const home = isAbsolute(given) ? given : homeFolder();
  return home === undefined ? undefined : join(home, '.cache', 'weftline');
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
  readonly #folder: string | undefined;

  /** Without a folder it keeps nothing. */
  constructor(folder: string | undefined) {
    this.#folder = folder === undefined ? undefined : join(folder, 'kernels');
  }

  /** The cubin of that key; undefined when there is none, it is damaged, or another user could have put it there. */
  read(key: string): Uint8Array | undefined {
    if (this.#folder === undefined) return undefined;
    const folder = join(this.#folder, key);
    try {
      if (whyNotTrusted(this.#folder) !== undefined) return undefined;
      const cubin = readTrusted(folder, CUBIN);
      const hash = readTrusted(folder, HASH).toString();
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
    const folder = this.#folder;
    if (folder === undefined) return false;
    const temporary = join(folder, `.new-${process.pid}-${randomBytes(6).toString('hex')}`);
    try {
      makeTrustedFolder(folder);
      makeTrustedFolder(temporary);
    } catch {
      return false;
    }
    try {
      replaceFile(join(temporary, CUBIN), cubin, kept);
      replaceFile(join(temporary, HASH), sha256(cubin), kept);
      syncFolder(temporary);
      this.#publish(temporary, join(folder, key));
      syncFolder(folder);
      return true;
    } catch {
      return false;
    } finally {
      rmSync(temporary, { recursive: true, force: true });
    }
  }

  /** A folder that exists is another process's work, unless it is damaged: then it makes room. */
  #publish(temporary: string, final: string): void {
    try {
      renameSync(temporary, final);
    } catch (error) {
      if (this.read(basename(final)) !== undefined) return;
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
      renameSync(final, `${temporary}-damaged`);
      rmSync(`${temporary}-damaged`, { recursive: true, force: true });
      renameSync(temporary, final);
    }
  }
}

function syncFolder(path: string): void {
  const fd = openSync(path, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
