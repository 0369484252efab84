// Boots a guest with RDMA devices once and runs the tests of verbs there; and how a guest ends that takes too long.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { guestOptions, here, rig, runGuest, scope } from './support/run-guest.ts';

test('verbs over soft-RoCE, in a guest', guestOptions, (t) => runGuest(t, 'main'));

// Takes many minutes, as the others of that scope.
if (scope === 'all') {
  const variables = {
    UCX_TLS: 'rc_v,self',
    // Debian's UCX throws away the datagrams of soft-RoCE by which it connects, unless it does not look at their address.
    UCX_UD_VERBS_ETH_DGID_CHECK: 'n',
    NODE_OPTIONS: `--import=${here('../guest/support/ucx-devices.js')}`,
  };
  test('the backend ucx over soft-RoCE, in a guest', guestOptions, (t) => runGuest(t, 'ucx', variables));
}

test('a guest that does not end in time is stopped, with its last words', guestOptions, () => {
  const words = [rig, '--timeout', '0.5', 'true'];
  const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8' });
  assert.equal(status, 125);
  assert.match(stderr, /^soft-roce: The guest failed: it was stopped after 0\.5 s, before the command began/m);
});
