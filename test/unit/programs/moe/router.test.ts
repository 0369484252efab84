import assert from 'node:assert/strict';
import test from 'node:test';
import { routeTopk } from '#lib/programs/moe/moe-block.js';

const f = Math.fround;
const sigmoid = (value: number): number => 1 / (1 + Math.exp(-value));

test('routeTopk() takes the largest probabilities in descending order', () => {
  const { ids, weights } = routeTopk(Float32Array.from([0, 2, 1, -1]), { experts: 4, topk: 3, normalize: false });
  assert.deepEqual([...ids], [1n, 2n, 0n]);
  const sum = Math.exp(0) + Math.exp(2) + Math.exp(1) + Math.exp(-1);
  const expected = [Math.exp(2) / sum, Math.exp(1) / sum, 1 / sum];
  for (const [k, weight] of weights.entries()) assert.ok(Math.abs(weight - (expected[k] as number)) < 1e-7);
});

test('routeTopk() with normalize divides by the sum of the chosen', () => {
  const { weights } = routeTopk(Float32Array.from([0, 0, -50, 0]), { experts: 4, topk: 2, normalize: true });
  assert.deepEqual([...weights], [0.5, 0.5]);
});

test('routeTopk() gives ties to the lower expert', () => {
  const logits = Float32Array.from([1, 3, 3, 3, 1, 1, 1, 1, 1, 1]);
  const { ids } = routeTopk(logits, { experts: 5, topk: 4, normalize: false });
  assert.deepEqual([...ids], [1n, 2n, 3n, 0n, 0n, 1n, 2n, 3n]);
});

test('routeTopk() keeps apart logits that are large or far apart', () => {
  const { ids, weights } = routeTopk(Float32Array.from([3e38, -3e38, 90, 3e38]), {
    experts: 4,
    topk: 4,
    normalize: false,
  });
  assert.deepEqual([...ids], [0n, 3n, 1n, 2n]);
  assert.deepEqual([...weights], [f(0.5), f(0.5), 0, 0]);
});

test('routeTopk() of no tokens is empty', () => {
  assert.equal(routeTopk(new Float32Array(), { experts: 4, topk: 2, normalize: true }).ids.length, 0);
});

test('routeTopk() names a logit that is not a finite number', () => {
  for (const odd of [Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.throws(() => routeTopk(Float32Array.from([0, 1, 2, odd]), { experts: 2, topk: 1, normalize: false }), {
      code: 'WL_INVALID_ARGUMENT',
      message: /logits\[1\]\[1\]/,
    });
  }
});

test('routeTopk() with sigmoids chooses by the biased score, and weights by the score alone', () => {
  const bias = Float32Array.from([0, 0, 1, 0]);
  const { ids, weights } = routeTopk(
    Float32Array.from([2, 1, -1, 0]),
    { experts: 4, topk: 2, normalize: false, scoring: 'sigmoid', scale: 2 },
    bias,
  );
  assert.deepEqual([...ids], [2n, 0n]);
  assert.deepEqual([...weights], [f(2 * f(sigmoid(-1))), f(2 * f(sigmoid(2)))]);
});

test('routeTopk() ends whatever the bias is, and takes no expert twice', () => {
  const groups = { count: 4, chosen: 2, by: 'bestTwo' } as const;
  const options = { experts: 8, topk: 4, normalize: true, scoring: 'sigmoid', groups } as const;
  // The sums of two are beyond f32.
  for (const value of [-3e38, 3e38, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY, Number.NaN]) {
    const { ids } = routeTopk(new Float32Array(8), options, new Float32Array(8).fill(value));
    assert.deepEqual([...ids], [0n, 1n, 2n, 3n], String(value));
  }
});

test('routeTopk() takes experts of the best groups only, by their best expert or their best two', () => {
  const logits = Float32Array.from([5, -5, 4, 4, 1, 1]);
  const options = { experts: 6, topk: 2, normalize: true, scoring: 'sigmoid' } as const;
  const best = routeTopk(logits, { ...options, groups: { count: 3, chosen: 1, by: 'best' } });
  assert.deepEqual([...best.ids], [0n, 1n]);
  const bestTwo = routeTopk(logits, { ...options, groups: { count: 3, chosen: 1, by: 'bestTwo' } });
  assert.deepEqual([...bestTwo.ids], [2n, 3n]);
  assert.deepEqual([...bestTwo.weights], [0.5, 0.5]);
  const two = routeTopk(logits, { ...options, topk: 3, groups: { count: 3, chosen: 2, by: 'bestTwo' } });
  assert.deepEqual([...two.ids], [2n, 3n, 4n]);
});
