import assert from 'node:assert/strict';
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import test from 'node:test';
import { holdFile, lockByte } from '#lib/native/libc.js';
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

test('the folder of a launcher goes once nobody holds its file, whichever process its number names', () => {
  const folder = mkdtempSync(`${tmpdir()}/weftline-test-`);
  // Beyond all numbers of processes of this system, as one of another process-id namespace may be.
  const [living, dead, empty] = ['2147483647', String(process.pid), 'Xy12Ab'].map(
    (name) => `${folder}/weftline-hash-launcher-${name}`,
  ) as [string, string, string];
  for (const path of [living, dead, empty]) mkdirSync(path);
  for (const path of [living, dead]) writeFileSync(`${path}/failures`, '');
  const fd = openSync(`${living}/failures`, 'r+');
  assert.ok(holdFile(fd));
  const now = Date.now() + 120_000;
  assert.deepEqual(removeStaleFiles({ folder, now }).toSorted(), [dead, empty].toSorted());
  assert.ok(existsSync(living));
  closeSync(fd);
  assert.deepEqual(removeStaleFiles({ folder, now }), [living]);
  rmSync(folder, { recursive: true });
});
