// Compiles kernels with nvcc, and keeps what it said of those that compiled in the user's cache folder, by their content.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { resolveCacheFolder } from '#lib/device/cuda/jit/cubin-cache.js';
import { isWhole } from '../../support/extent.ts';

/** Version of the entries: one that was written by another version of this file is another entry. */
const SCHEMA = 'weftline.nvcc/1';
/** Entries that nothing asked for in so many days are removed. */
const MAX_AGE_DAYS = 30;
const DAY_MS = 86_400_000;

export interface Compiled {
  /** What the compiler and its assembler print. */
  readonly said: string;
  /** SHA-256 of the machine code. */
  readonly code: string;
}

export interface NvccOptions {
  /** Where quoted headers are looked for. */
  readonly include: string;
  readonly program?: string;
  /** Folder of the entries; undefined to compile always. */
  readonly cache?: string | undefined;
}

/** In the user's cache folder; undefined without one, and where the whole extent is to run. */
export function compilationCache(): string | undefined {
  const folder = resolveCacheFolder('');
  return isWhole || folder === undefined ? undefined : join(folder, 'nvcc');
}

export class Nvcc {
  readonly #program: string;
  readonly #include: string;
  readonly #cache: string | undefined;
  readonly #folder = mkdtempSync(join(tmpdir(), 'weftline-nvcc-'));
  #outputs = 0;
  #compilers: string | undefined;

  constructor({ include, program = 'nvcc', cache }: NvccOptions) {
    this.#program = program;
    this.#include = include;
    this.#cache = cache;
    if (cache !== undefined) removeOld(cache);
  }

  close(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Fails with an AssertionError that holds what the compiler says. Failures are not kept. */
  async compile(path: string, flags: readonly string[]): Promise<Compiled> {
    const entry = this.#cache === undefined ? undefined : join(this.#cache, this.#key(path, flags));
    const kept = entry === undefined ? undefined : readEntry(entry);
    if (kept !== undefined) return kept;
    const compiled = await this.#run(path, flags);
    if (entry !== undefined) writeEntry(entry, compiled);
    return compiled;
  }

  async #run(path: string, flags: readonly string[]): Promise<Compiled> {
    const output = join(this.#folder, `${(this.#outputs += 1)}.cubin`);
    const child = spawn(this.#program, [...flags, '-cubin', '-I', this.#include, path, '-o', output], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let said = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => (said += text));
    }
    const code = await new Promise((done) => child.on('close', done));
    assert.equal(code, 0, said);
    return { said, code: sha256(readFileSync(output)) };
  }

  /** The key of everything that the compiler's answer depends on. Where the files stand is not part of it. */
  #key(path: string, flags: readonly string[]): string {
    const text = readFileSync(path, 'utf8');
    this.#compilers ??= describeCompilers(this.#program);
    return sha256(JSON.stringify([SCHEMA, this.#compilers, flags, text, this.#headersOf(text)]));
  }

  /**
   * Name and text of each header of `include` that the text names, whatever conditions it stands under, and of those that
   * these name.
   */
  #headersOf(text: string): [string, string][] {
    const found = new Map<string, string>();
    const texts = [text];
    for (let next = texts.pop(); next !== undefined; next = texts.pop()) {
      for (const [line, name] of next.matchAll(/^[ \t]*#[ \t]*include\b[ \t]*(?:["<]([^">\n]+)[">])?.*$/gm)) {
        assert.ok(name !== undefined, `cannot tell which header this is: ${line}`);
        const header = join(this.#include, name);
        if (found.has(name) || !existsSync(header)) continue;
        const contents = readFileSync(header, 'utf8');
        found.set(name, contents);
        texts.push(contents);
      }
    }
    return [...found].toSorted(([a], [b]) => (a < b ? -1 : 1));
  }
}

function ask(program: string, ...words: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(program, words, { encoding: 'utf8' });
  assert.equal(status, 0, error?.message ?? stderr);
  // A dry run prints on the standard error.
  return stdout + stderr;
}

/** Versions of nvcc and the host compiler that it calls, the toolkit's headers, and variables that change what it does. */
function describeCompilers(nvcc: string): string {
  const variables = Object.entries(process.env).filter(([name]) => name.startsWith('NVCC_'));
  const host = process.env['NVCC_CCBIN'] ?? 'gcc';
  const hostVersion = ask(
    statSync(host, { throwIfNoEntry: false })?.isDirectory() ? join(host, 'gcc') : host,
    '--version',
  );
  const plan = ask(nvcc, '-dryrun', '-cubin', '-o', 'none.cubin', 'none.cu');
  const top = /^#\$ TOP=(.+)$/m.exec(plan)?.[1];
  assert.ok(top !== undefined, `nvcc does not tell where its toolkit is:\n${plan}`);
  return JSON.stringify([ask(nvcc, '--version'), hostVersion, variables, describeFiles(join(resolve(top), 'include'))]);
}

/** Name, size and time of each file. */
function describeFiles(folder: string): [string, number, number][] {
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' }).toSorted();
  return names.map((name) => {
    const { size, mtimeMs } = statSync(join(folder, name));
    return [name, size, mtimeMs];
  });
}

function sha256(data: string | Uint8Array): string {
  return createHash('sha256').update(data).digest('hex');
}

/** Undefined if there is none, or it is not whole. */
function readEntry(path: string): Compiled | undefined {
  try {
    const [hash, ...rest] = readFileSync(path, 'utf8').split('\n');
    const body = rest.join('\n');
    if (sha256(body) !== hash) return undefined;
    const now = new Date();
    utimesSync(path, now, now);
    return JSON.parse(body) as Compiled;
  } catch {
    return undefined;
  }
}

/** Whole or not at all. A cache that cannot be written only costs time. */
function writeEntry(path: string, compiled: Compiled): void {
  const temporary = `${path}.new-${process.pid}`;
  const body = JSON.stringify(compiled);
  try {
    mkdirSync(dirname(path), { recursive: true });
  } catch {
    return;
  }
  try {
    writeFileSync(temporary, `${sha256(body)}\n${body}`);
    renameSync(temporary, path);
  } catch {
    rmSync(temporary, { force: true });
  }
}

function removeOld(cache: string): void {
  if (!existsSync(cache)) return;
  for (const name of readdirSync(cache)) {
    const path = join(cache, name);
    const written = statSync(path, { throwIfNoEntry: false })?.mtimeMs;
    if (written !== undefined && Date.now() - written > MAX_AGE_DAYS * DAY_MS) rmSync(path, { force: true });
  }
}
