// Peers that packets no longer reach: those that close in good order say so before that counts.
import assert from 'node:assert/strict';
import test from 'node:test';
import { RefusedPeers } from '#lib/transport/host/engine-host.js';

test('a peer counts as gone only when a busy process would have heard that it closed, and once', (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const peers = new RefusedPeers();
  const refused = [3];
  assert.deepEqual(peers.due(refused), []);
  assert.deepEqual(refused, []);
  now = 500;
  assert.deepEqual(peers.due([3, 4]), []);
  peers.forget(4);
  now = 5_000;
  assert.deepEqual(peers.due([]), [3]);
  peers.forget(3);
  assert.deepEqual(peers.due([]), []);
});
