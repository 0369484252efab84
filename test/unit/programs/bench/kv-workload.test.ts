// The pages of the KV bench, by hand.
import assert from 'node:assert/strict';
import test from 'node:test';
import { pageEntries, planKv } from '#lib/programs/bench/kv/kv-workload.js';

test('pools of a prompt of 512 tokens in pages of 16', () => {
  // 4 entries of 4 tokens in a page; one entry of 128; 16 of the window.
  const { pools, ranges, bytes, poolBytes } = planKv({ tokens: 512, pageTokens: 16, requests: 1 });
  assert.deepEqual(
    pools.map(({ layers, pages, pageBytes, poolPages }) => [layers, pages, pageBytes, poolPages]),
    [
      [30, 32, 2304, 72],
      [30, 32, 528, 72],
      [31, 4, 576, 16],
      [61, 8, 9216, 24],
    ],
  );
  assert.equal(ranges, 30 * 32 * 2 + 31 * 4 + 61 * 8);
  assert.equal(bytes, 30 * 32 * 2832 + 31 * 4 * 576 + 61 * 8 * 9216);
  assert.equal(poolBytes, 30 * 72 * 2832 + 31 * 16 * 576 + 61 * 24 * 9216);
  assert.equal(pools[3]?.offset, 30 * 72 * 2832 + 31 * 16 * 576);
});

test('a prompt of 8192 tokens has as many ranges as CollectiveX posts, and pages of 64 a third of them', () => {
  assert.equal(planKv({ tokens: 8192, pageTokens: 16, requests: 1 }).ranges, 30 * 512 * 2 + 31 * 64 + 61 * 8);
  assert.equal(planKv({ tokens: 8192, pageTokens: 64, requests: 1 }).ranges, 30 * 128 * 2 + 31 * 64 + 61 * 2);
});

test('requests have pages of their own, each once, in an order that the seed gives', () => {
  const plan = planKv({ tokens: 2000, pageTokens: 16, requests: 5 });
  const requests = pageEntries(plan, 5, 67);
  assert.deepEqual(pageEntries(plan, 5, 67), requests);
  assert.notDeepEqual(pageEntries(plan, 5, 68), requests);
  const all = requests.flatMap((entries) => [...entries]);
  assert.equal(new Set(all).size, 5 * plan.ranges);
  // Every layer of a pool has the same pages.
  let [first, at] = [0, 0];
  for (const { layers, pages, poolPages } of plan.pools) {
    const pagesOf = requests.map((entries) => [...entries.subarray(at, at + pages)].map((entry) => entry - first));
    for (let layer = 0; layer < layers; layer++) {
      for (const [request, entries] of requests.entries()) {
        const found = [...entries.subarray(at, at + pages)].map((entry) => entry - first);
        assert.ok(found.every((page) => page >= 0 && page < poolPages));
        assert.deepEqual(found, pagesOf[request]);
        if (pages > 8)
          assert.notDeepEqual(
            found,
            found.toSorted((a, b) => a - b),
          );
      }
      first += poolPages;
      at += pages;
    }
  }
});
