// Processes that are killed, stopped and continued at random moments: every survivor hears of it in
// time, nothing wrong arrives, nothing is left. The long run: npm run test:hostile.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { testSeed } from '../support/seed.ts';

const script = fileURLToPath(new URL('./chaos/main.js', import.meta.url));

test('a member that is killed or stopped holds up the others no longer than a deadline', { timeout: 600_000 }, () => {
  const words = ['--seed', String(testSeed()), '--kills', '7', '--stops', '5', '--long-stops', '1', '--verbose'];
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, ...words], {
    encoding: 'utf8',
    timeout: 590_000,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  assert.equal(status, 0, stdout + stderr);
  assert.match(stdout, /^13 events/m);
});
