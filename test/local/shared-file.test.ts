import assert from 'node:assert/strict';
import { closeSync, existsSync, fstatSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { createSharedFile } from '#lib/windows/shared-file.js';

const folder = mkdtempSync(join(tmpdir(), 'weftline-shared-file-'));
after(() => rmSync(folder, { recursive: true }));

const spec = { bytes: 131_072, purpose: '2 windows of 64 KiB', reserve: true };

test('createSharedFile() reserves all bytes', () => {
  const path = join(folder, 'new');
  const fd = createSharedFile({ ...spec, path });
  const { size, blocks } = fstatSync(fd);
  closeSync(fd);
  assert.equal(size, spec.bytes);
  assert.ok(blocks * 512 >= spec.bytes);
});

test('createSharedFile() says what failed and what to do, and leaves files of others alone', () => {
  const taken = join(folder, 'taken');
  writeFileSync(taken, 'mine');
  for (const path of [taken, join(taken, 'below-a-file')]) {
    assert.throws(() => createSharedFile({ ...spec, path }), {
      code: 'WL_SHARED_MEMORY',
      message: /^Cannot reserve 128 KiB in \/dev\/shm for 2 windows of 64 KiB: E(?:EXIST|NOTDIR): .*; .*tmpfs/,
    });
  }
  assert.ok(existsSync(taken));
});
