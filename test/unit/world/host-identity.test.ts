import assert from 'node:assert/strict';
import test from 'node:test';
import { hostIdentity, placeRanks } from '#lib/world/host-identity.js';

test('placeRanks() groups ranks by host, nodes in order of their lowest rank', () => {
  const hosts = ['b', 'a', 'b', 'c', 'a'];
  assert.deepEqual(placeRanks(4, hosts), { localRanks: [1, 4], localRank: 1, nodeRank: 1, nodeCount: 3 });
  assert.deepEqual(placeRanks(0, hosts), { localRanks: [0, 2], localRank: 0, nodeRank: 0, nodeCount: 3 });
  assert.deepEqual(placeRanks(3, hosts), { localRanks: [3], localRank: 0, nodeRank: 2, nodeCount: 3 });
});

test('hostIdentity() is the same for the same host', () => {
  assert.equal(hostIdentity(), hostIdentity());
  assert.equal(hostIdentity().split('/').length, 3);
});
