import assert from 'node:assert/strict';
import { closeSync, mkdtempSync, openSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import test from 'node:test';
import { lockByte } from '#lib/native/libc.js';
import { removeStaleFiles } from '#lib/world/shared-memory-files.js';

test('removeStaleFiles() removes what is old and not locked, and nothing else', () => {
  const folder = mkdtempSync(`${tmpdir()}/weftline-test-`);
  for (const name of ['weftline-dead-0', 'weftline-live-0', 'weftline-live-9', 'other']) {
    writeFileSync(`${folder}/${name}`, 'x');
  }
  // A live job: each file is locked by its owner, at the byte of its local rank.
  const held = [0, 9].map((rank) => {
    const fd = openSync(`${folder}/weftline-live-${rank}`, 'r+');
    assert.ok(lockByte(fd, rank));
    return fd;
  });
  assert.deepEqual(removeStaleFiles({ folder }), [], 'too young');
  const now = Date.now() + 120_000;
  assert.deepEqual(removeStaleFiles({ folder, now }), [`${folder}/weftline-dead-0`]);
  held.forEach((fd) => closeSync(fd));
  removeStaleFiles({ folder, now });
  assert.deepEqual(readdirSync(folder), ['other']);
  rmSync(folder, { recursive: true });
});
