import assert from 'node:assert/strict';
import test from 'node:test';
import { countRouting, gatherLoad, spread } from '#lib/programs/moe/measure-forward.js';
import { expertShare, largestTokenShare, requireEvenExperts, tokenShare } from '#lib/programs/moe/block-share.js';

test('tokenShare() splits into contiguous parts that differ by one at most', () => {
  for (const [tokens, ranks] of [
    [10, 4],
    [3, 4],
    [0, 2],
    [1536, 5],
  ] as const) {
    let next = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const { first, count } = tokenShare(tokens, rank, ranks);
      assert.equal(first, next);
      assert.ok(count === Math.floor(tokens / ranks) || count === largestTokenShare(tokens, ranks));
      next += count;
    }
    assert.equal(next, tokens);
  }
});

test('expertShare() splits evenly and names the rank counts that are possible', () => {
  assert.deepEqual(expertShare(6, 1, 3), { first: 2, count: 2 });
  assert.throws(() => expertShare(6, 0, 4), {
    code: 'WL_INVALID_ARGUMENT',
    message: /ranks: expected a divisor of the 6 experts: 1, 2, 3, 6, got 4/,
  });
});

test('requireEvenExperts() names counts that divide evenly', () => {
  requireEvenExperts(32, 8, 4);
  assert.throws(() => requireEvenExperts(32, 2, 4), {
    code: 'WL_INVALID_ARGUMENT',
    message: /--redundant-experts: expected a multiple of the 4 ranks, such as 0 or 4, got 2/,
  });
});

test('countRouting() and gatherLoad() count choices, and tokens once per rank', () => {
  const shape = { topk: 3, experts: 4, ranks: 2 };
  const first = countRouting(BigInt64Array.from([0n, 1n, 3n, 2n, -1n, 3n]), shape);
  assert.deepEqual(first, { tokens: 2, perExpert: [1, 1, 1, 2], tokensTo: [1, 2] });
  const second = countRouting(BigInt64Array.from([1n, -1n, -1n]), shape);
  const perRank = gatherLoad([first, second], 'rank');
  assert.deepEqual(perRank.experts, [1, 2, 1, 2]);
  assert.deepEqual(perRank.ranks, [
    { rank: 0, tokens: 2, received: 2, receivedFromOthers: 1, expertRows: 3 },
    { rank: 1, tokens: 1, received: 2, receivedFromOthers: 2, expertRows: 3 },
  ]);
  const perExpert = gatherLoad([first, second], 'expert');
  assert.deepEqual(
    perExpert.ranks.map(({ received, receivedFromOthers }) => [received, receivedFromOthers]),
    [
      [3, 1],
      [3, 3],
    ],
  );
});

test('spread() names the first least and the first most', () => {
  assert.deepEqual(spread([2, 0, 5, 5, 0]), { mean: 2.4, least: { index: 1, value: 0 }, most: { index: 2, value: 5 } });
});
