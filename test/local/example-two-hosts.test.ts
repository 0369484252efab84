// The script that runs a program on two hosts, which are namespaces of this machine.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { whyNotTwoMachines } from '../support/two-machines.ts';
import { skipWithout } from './support/requirements.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const skip = skipWithout('namespaces', whyNotTwoMachines());

test('examples/two-hosts.sh runs an example on two hosts, and passes on how it failed', { skip }, () => {
  const env = {
    ...process.env,
    WEFTLINE: `${process.execPath} ${root}dist/programs/cli/main.js`,
    WEFTLINE_DEVICE: 'cpu',
    WEFTLINE_TOKEN: undefined,
  };
  const run = (...words: string[]) =>
    spawnSync('sh', ['examples/two-hosts.sh', ...words], { cwd: root, encoding: 'utf8', timeout: 600_000, env });
  const { status, stdout, stderr } = run('-n', '1', 'examples/expert-parallel.mjs');
  assert.equal(status, 0, stdout + stderr);
  assert.deepEqual(stdout.trimEnd().split('\n').toSorted(), [
    '[0] received 4 rows, got back 3, 1, 2',
    '[1] received 4 rows, got back 6, 2, 4',
  ]);
  assert.notEqual(run('-n', '1', 'no-such-program.mjs').status, 0);
});
