// The documents as texts: links lead somewhere, the README stays short.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { brokenLinks } from '../local/documentation/links.ts';
import { listFiles, root } from './architecture/source-tree.ts';

const documents = [
  'README.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'CHANGELOG.md',
  ...listFiles('docs', ['.md']),
  ...listFiles('src', ['.md']),
];

test('relative links lead to files and headings of the repository', () => {
  assert.deepEqual(
    documents.flatMap((file) => brokenLinks(root, file)),
    [],
  );
});

test('brokenLinks() finds a missing file and a missing heading', () => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-links-'));
  try {
    const text =
      '# `A`, b-c\n[x](#a-b-c) [y](a.md#a-b-c) [z](a.md#d) [w](b.md) [v](https://example.org) [t](https://github.com/weftline/weftline/blob/main/d.md)\n```\n[u](c.md)\n```\n';
    writeFileSync(join(folder, 'a.md'), text);
    assert.deepEqual(brokenLinks(folder, 'a.md'), [
      'a.md: a.md#d leads to no heading',
      'a.md: b.md leads to no file',
      'a.md: https://github.com/weftline/weftline/blob/main/d.md leads to no file',
    ]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('the README is a front door of at most 8 KiB', () => {
  const { length } = readFileSync(join(root, 'README.md'));
  assert.ok(length <= 8192, `${length} bytes: move what is for few readers into docs/`);
});

test('the pictures are what the script writes', () => {
  const { status, stderr } = spawnSync(process.execPath, [join(root, 'scripts/pictures.mjs'), '--check'], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
});

test('the reference pages are what the code says', () => {
  const { status, stderr } = spawnSync(process.execPath, [join(root, 'scripts/reference.mjs'), '--check'], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
});
