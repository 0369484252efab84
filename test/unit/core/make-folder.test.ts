// Folders with their parents, also where the system refuses them.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { makeFolder } from '#lib/core/guarded-file.js';

test('a folder is made with its parents, or the error of mkdir is thrown', (context) => {
  const root = mkdtempSync(join(tmpdir(), 'weftline-folder-'));
  context.after(() => rmSync(root, { recursive: true }));
  for (let time = 0; time < 2; time++) makeFolder(join(root, 'a/b/c'), 0o700);
  assert.equal(statSync(join(root, 'a/b')).mode & 0o777, 0o700);
  const file = join(root, 'file');
  writeFileSync(file, '');
  assert.throws(() => makeFolder(file), { code: 'EEXIST' });
  assert.throws(() => makeFolder(join(file, 'a')), { code: 'ENOTDIR' });
});

test('where the system refuses folders as if their parent were missing, there is an error too', () => {
  // mkdirSync() with `recursive` never returns here.
  assert.throws(() => makeFolder('/proc/.cache/weftline'), { code: 'ENOENT' });
});
