// Ranges of tokens for another node: consecutive ones together, none beyond its tile of 256.
import assert from 'node:assert/strict';
import test from 'node:test';
import { fillSendRequests, sendRequests } from '#lib/ep/layer/layout-desc.js';

test('ranges end where tokens are missing, and at each tile', () => {
  const cells = new Int32Array(2 * 8).fill(-1);
  fillSendRequests(cells, Int32Array.of(0, 1, 5, 254, 255, 256, 257, 600));
  assert.deepEqual([...cells.subarray(0, 8)], [0, 5, 254, 256, 600, -1, -1, -1]);
  assert.deepEqual([...cells.subarray(8)], [2, 6, 256, 258, 601, -1, -1, -1]);
  const none = new Int32Array(4).fill(-1);
  fillSendRequests(none, new Int32Array(0));
  assert.deepEqual([...none], [-1, -1, -1, -1]);
  const all = new Int32Array(2 * 1024).fill(-1);
  fillSendRequests(
    all,
    Int32Array.from({ length: 1024 }, (_, token) => token),
  );
  assert.deepEqual([...all.subarray(0, 5)], [0, 256, 512, 768, -1]);
  assert.deepEqual([...all.subarray(1024, 1029)], [256, 512, 768, 1024, -1]);
});

test('requests by node: tokens with an expert there, dropped choices aside, nothing for the own node', () => {
  // Experts 0 and 1 on node 0, 2 and 3 on node 1, 4 and 5 on node 2, which asks.
  const hostOf = [0, 0, 1, 1, 2, 2];
  const of = { host: 2, hosts: 3, maxTopk: 2, maxTokensPerRank: 4 };
  const ids = [0, 2, 1, -1, 5, 3, 6, 4];
  const want = [
    [0, -1, -1, -1, 2, -1, -1, -1],
    [0, 2, -1, -1, 1, 3, -1, -1],
    [-1, -1, -1, -1, -1, -1, -1, -1],
  ];
  assert.deepEqual([...sendRequests(Int32Array.from(ids), hostOf, of)], want.flat());
  assert.deepEqual([...sendRequests(BigInt64Array.from(ids, BigInt), hostOf, of)], want.flat());
});
