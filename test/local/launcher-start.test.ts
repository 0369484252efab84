// What weftline run refuses before it starts any rank.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join as joinPath } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { launch } from 'weftline/world';
import { withCode } from '../support/with-code.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const folder = mkdtempSync(joinPath(tmpdir(), 'weftline-test-'));
writeFileSync(joinPath(folder, 'program'), '#!/bin/sh\n');

function run(...args: readonly string[]) {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  return spawnSync(process.execPath, [main, 'run', ...args], { encoding: 'utf8', env, cwd: folder });
}

test('a script that does not exist is one error, before any rank starts', () => {
  for (const script of ['missing.js', './missing', 'missing.mts', '/no/such/program']) {
    const { status, stdout, stderr } = run('-n', '2', script);
    assert.equal(status, 1);
    assert.equal(stdout, '');
    assert.match(stderr, /^weftline: WL_LAUNCH: Cannot start ".*(missing|program).*": there is no file ".*"\n$/);
    assert.equal(stderr.split('\n').length, 2, stderr);
  }
  assert.match(run('-n', '2', 'no-such-program').stderr, /^weftline: WL_LAUNCH: .* no folder of PATH has a program/);
  assert.match(run('-n', '2', 'program').stderr, /^weftline: WL_LAUNCH: .*, give \.\/program\n$/);
  assert.match(run('-n', '2', folder).stderr, /^weftline: WL_LAUNCH: .* is a folder, expected a file\n$/);
});

test('a script is looked for where the ranks run', async () => {
  writeFileSync(joinPath(folder, 'here.cjs'), '');
  const { exitCode } = await launch({ command: ['here.cjs'], ranks: 1, cwd: folder });
  assert.equal(exitCode, 0);
  await assert.rejects(launch({ command: ['here.cjs'], ranks: 1 }), withCode('WL_LAUNCH', 'here.cjs'));
  const nowhere = { command: ['here.cjs'], ranks: 1, cwd: joinPath(folder, 'nowhere') };
  await assert.rejects(launch(nowhere), withCode('WL_LAUNCH', 'there is no folder', 'nowhere'));
});

test('a job has at most 1024 ranks, on all nodes together', async () => {
  const script = joinPath(folder, 'here.cjs');
  writeFileSync(script, '');
  const { status, stderr } = run('-n', '1025', script);
  assert.equal(status, 2);
  assert.match(stderr, /1024/);
  const command = [script];
  await assert.rejects(launch({ command, ranks: 1025 }), withCode('WL_INVALID_ARGUMENT', 'to 1024, got 1025'));
  const nodes = { command, ranks: 512, nodeCount: 3, master: { host: '127.0.0.1', port: 1 } };
  await assert.rejects(
    launch(nodes),
    withCode('WL_INVALID_ARGUMENT', 'expected at most 1024 in all, got "512 on each of 3 nodes"'),
  );
});

test('options of the wrong type are refused by name, before any rank starts', async () => {
  const wrong: readonly [object, string][] = [
    [{ cwd: 7 }, 'Invalid cwd: expected the path of a folder, got 7'],
    [{ env: 'A=1' }, 'Invalid env: expected an object of strings by name, got "A=1"'],
    [{ env: { LEVEL: 3 } }, 'Invalid env.LEVEL: expected a string, got 3'],
    [{ master: '10.0.0.1:29500' }, 'Invalid option master: expected an object, got "10.0.0.1:29500"'],
    [{ master: { host: 5, port: 1 } }, 'Invalid master.host: expected a name or an address, got 5'],
    [{ master: { host: 'a', port: '1' } }, 'Invalid master.port: expected an integer from 1 to 65535, got "1"'],
    [{ signal: new AbortController() }, 'Invalid signal: expected an AbortSignal, got AbortController'],
    [{ signal: null }, 'Invalid signal: expected an AbortSignal, got null'],
  ];
  for (const [options, message] of wrong) {
    await assert.rejects(launch({ command: ['node'], ranks: 1, ...options }), withCode('WL_INVALID_ARGUMENT', message));
  }
});
