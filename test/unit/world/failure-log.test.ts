// What ranks note is taken from, and written to, a file of their own user alone.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, chmodSync, existsSync, linkSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { FailureLog, noteFailure } from '#lib/world/failure-log.js';

const note = (rank: number) => ({ rank, time: 1, because: [], error: { message: `of rank ${rank}` } });

test('notes are read in the order in which they were made, and the folder goes with the log', () => {
  const log = new FailureLog('unit test');
  const { path = '', folder = '' } = log;
  try {
    assert.equal(statSync(folder).mode & 0o777, 0o700);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    assert.deepEqual(log.read(), []);
    assert.deepEqual(noteFailure(path, note(1)), []);
    assert.deepEqual(noteFailure(path, note(0)), [note(1)]);
    assert.deepEqual(log.read(), [note(1), note(0)]);
    // More than is ever read, at once or at all.
    appendFileSync(path, `${'x'.repeat(20 * 1024 * 1024)}\n`);
    appendFileSync(path, `${JSON.stringify(note(2))}\n`);
    assert.deepEqual(log.read(), [note(1), note(0)]);
  } finally {
    log[Symbol.dispose]();
  }
  assert.ok(!existsSync(folder));
  assert.deepEqual(log.read(), []);
});

test('a rank writes to no link, pipe, file with other names or file of others, and makes no file', () => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-test-'));
  const at = (name: string) => join(folder, name);
  try {
    writeFileSync(at('victim'), 'kept', { mode: 0o600 });
    symlinkSync(at('victim'), at('link'));
    writeFileSync(at('named twice'), 'kept', { mode: 0o600 });
    linkSync(at('named twice'), at('second name'));
    writeFileSync(at('for all'), 'kept');
    chmodSync(at('for all'), 0o666);
    execFileSync('mkfifo', ['-m', '600', at('pipe')]);
    for (const name of ['link', 'second name', 'for all', 'pipe', 'missing']) {
      assert.equal(noteFailure(at(name), note(0)), undefined, name);
    }
    for (const name of ['victim', 'named twice', 'for all']) assert.equal(readFileSync(at(name), 'utf8'), 'kept');
    assert.ok(!existsSync(at('missing')));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
