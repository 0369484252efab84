// Boots a guest with RDMA devices once and runs the tests of verbs and of the transport over it there; and how a guest ends that takes too long.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { guestOptions, rig, runGuest } from './support/run-guest.ts';

test('verbs over soft-RoCE, in a guest', guestOptions, (t) => runGuest(t, 'main'));

test('a guest that does not end in time is stopped, with its last words', guestOptions, () => {
  const words = [rig, '--timeout', '0.5', 'true'];
  const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8' });
  assert.equal(status, 125);
  assert.match(stderr, /^soft-roce: The guest failed: it was stopped after 0\.5 s, before the command began/m);
});
