// No dead exports: every exported name of src is imported somewhere, or belongs to an entry file of the package.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { listFiles, readSource, root, type SourceFile } from './architecture/source-tree.ts';

const sources: readonly SourceFile[] = listFiles('src', ['.ts']).map(readSource);
const tests: readonly SourceFile[] = listFiles('test', ['.ts']).map(readSource);
const packageJson = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly exports: Readonly<Record<string, string | { readonly default: string }>>;
};

/** The sources behind package.json's exports: what they export is for users. */
const entryFiles = Object.values(packageJson.exports)
  .flatMap((target) => (typeof target === 'string' ? [] : [target.default]))
  .map((path) => path.replace(/^\.\/dist\//, 'src/').replace(/\.js$/, '.ts'));

test('every exported name is imported somewhere, or belongs to an entry file', () => {
  const used = new Map<string, Set<string>>();
  for (const file of [...sources, ...tests]) {
    for (const line of file.imports) {
      const known = used.get(line.target) ?? new Set<string>();
      for (const name of line.names) known.add(name);
      used.set(line.target, known);
    }
  }
  const unused = sources
    .filter((file) => !entryFiles.includes(file.path))
    .flatMap((file) => {
      const imported = used.get(file.path) ?? new Set<string>();
      if (imported.has('*')) return [];
      return file.exports
        .filter((name) => !imported.has(name) && !isOwnSignatureType(file, name) && !isWorkOfThread(file, name))
        .map((name) => `${file.path}: ${name}`);
    });
  assert.deepEqual(unused, []);
});

test('no two entries give one name to two things', () => {
  const places = new Map<string, Set<string>>();
  for (const entry of sources.filter((file) => entryFiles.includes(file.path))) {
    for (const { target, names } of entry.imports) {
      for (const name of names) places.set(name, (places.get(name) ?? new Set()).add(target));
    }
  }
  assert.deepEqual(
    [...places].filter(([, targets]) => targets.size > 1).map(([name]) => name),
    [],
  );
});

/** What a thread of the pool calls: some file gives it the address of the module. */
function isWorkOfThread({ path }: SourceFile, name: string): boolean {
  const module = `packageFile('./${path.slice(path.lastIndexOf('/') + 1).replace(/\.ts$/, '.js')}', import.meta.url)`;
  return name === 'run' && sources.some(({ text }) => text.includes(module));
}

/** A type that the file's other exports mention is part of their signatures, even if nobody names it. */
function isOwnSignatureType(file: SourceFile, name: string): boolean {
  const declared = new RegExp(`^export (?:type|interface) ${name}\\b`, 'm').test(file.text);
  return declared && [...file.text.matchAll(new RegExp(`\\b${name}\\b`, 'g'))].length > 1;
}
