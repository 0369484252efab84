// The script that runs a program on two hosts, which are namespaces of this machine.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { whyNotTwoMachines } from '../support/two-machines.ts';
import { skipWithout } from './support/requirements.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const skip = skipWithout('namespaces', whyNotTwoMachines());

function runOnTwoHosts(words: readonly string[], path = process.env['PATH']) {
  const env = {
    ...process.env,
    PATH: path,
    WEFTLINE: `${process.execPath} ${root}dist/programs/cli/main.js`,
    WEFTLINE_DEVICE: 'cpu',
    WEFTLINE_TOKEN: undefined,
  };
  return spawnSync('sh', ['examples/two-hosts.sh', ...words], { cwd: root, encoding: 'utf8', timeout: 600_000, env });
}

function assertExampleRan({ status, stdout, stderr }: ReturnType<typeof runOnTwoHosts>): void {
  assert.equal(status, 0, stdout + stderr);
  assert.deepEqual(stdout.trimEnd().split('\n').toSorted(), [
    '[0] received 4 rows, got back 3, 1, 2',
    '[1] received 4 rows, got back 6, 2, 4',
  ]);
}

test('examples/two-hosts.sh runs an example on two hosts, and passes on how it failed', { skip }, () => {
  assertExampleRan(runOnTwoHosts(['-n', '1', 'examples/expert-parallel.mjs']));
  assert.notEqual(runOnTwoHosts(['-n', '1', 'no-such-program.mjs']).status, 0);
});

test('examples/two-hosts.sh waits until its namespaces are made', { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-two-hosts-'));
  try {
    const slow = join(folder, 'unshare');
    writeFileSync(slow, '#!/bin/sh\nsleep 0.5\nPATH=${PATH#*:} exec unshare "$@"\n');
    chmodSync(slow, 0o755);
    assertExampleRan(runOnTwoHosts(['-n', '1', 'examples/expert-parallel.mjs'], `${folder}:${process.env['PATH']}`));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
