// The reference of combine on several hosts: small cases whose sums and roundings were worked out by hand.
import assert from 'node:assert/strict';
import test from 'node:test';
import { toBf16, toF16 } from 'weftline';
import {
  referenceCombine,
  referenceCombineWeights,
  referenceDispatch,
  referenceLayerCombine,
  referenceLayerDispatch,
} from 'weftline/reference';
import { random, rows } from '../../local/ranks/ep-case.ts';
import type { ReferenceCombineInput } from '#lib/reference/ep-buffer.js';
import type { ReferenceHosts } from '#lib/reference/host-sums.js';

const bits = (values: readonly number[]): number[] => values.map(toBf16);

/** One token of rank 0 that goes to every rank; the ranks make `values` of it. */
function combine(values: readonly number[], hosts: ReferenceHosts, bias?: number): number {
  const topkIdx = [values.map((_, rank) => rank)];
  const none = { x: [], topkIdx: [] };
  const inputs = values.map((_, rank) => (rank === 0 ? { x: [[0]], topkIdx } : none));
  const received = referenceDispatch(inputs, { numExperts: values.length });
  const outputs = values.map((value) => [[toBf16(value)]]);
  const [sum] = referenceCombine(
    { received, outputs, ...hosts },
    { rank: 0, token: 0, hidden: 1, topk: values.length, ...(bias !== undefined && { bias: [bits([bias])] }) },
  );
  return sum!;
}

// Between 256 and 512 a bf16 counts in steps of 2, and a half-way case goes to the multiple of 4.
test('a sum of another host is rounded before it is added', () => {
  // (1 + 256) rounds to 256: 256 + 1 rounds to 256, where 257 + 1 is 258.
  assert.equal(combine([1, 1, 256], { hosts: [[0], [1, 2]] }), toBf16(256));
  assert.equal(combine([1, 1, 256], {}), toBf16(258));
  assert.equal(combine([1, 1, 256], { hosts: [[0, 1, 2]] }), toBf16(258));
  assert.equal(combine([1, 1, 256], { hosts: [[0], [1, 2]], combinePrecision: 'f32' }), toBf16(258));
});

test('rows of the own host count one by one, unrounded', () => {
  // 256 + 1 is not rounded, so + 1 makes 258.
  assert.equal(combine([256, 1, 1], { hosts: [[0, 1], [2]] }), toBf16(258));
  assert.equal(combine([256, 1, 1], { hosts: [[0], [1], [2]] }), toBf16(258));
  // 1 + 1 are one row of 2, and no bit is lost.
  assert.equal(combine([256, 1, 1], { hosts: [[0], [1, 2]] }), toBf16(258));
});

test('hosts in order of their lowest ranks, ranks in order within a host, biases before all', () => {
  const large = 2 ** 26;
  // 2^26 + 1 is 2^26 in f32, so the 1 counts only where 2^26 is gone before.
  assert.equal(combine([large, -large, 1], {}), toBf16(1));
  assert.equal(combine([large, 1, -large], {}), toBf16(0));
  // Ranks 0 and 2 share the first host: their rows cancel before the 1 of the other host comes.
  assert.equal(combine([large, 1, -large], { hosts: [[0, 2], [1]] }), toBf16(1));
  // The own host is the first in order, and the last: rank 0 is where its number says.
  assert.equal(combine([1, large, -large], { hosts: [[0], [1], [2]] }), toBf16(0));
  assert.equal(combine([1, large, -large], { hosts: [[1], [2], [0]] }), toBf16(1));
  assert.equal(combine([1, -large], { hosts: [[0], [1]] }, large), toBf16(0));
});

/** A token of rank 0 that goes to rank 1 alone, which makes `pattern` and -0 of it. */
function oneRow(pattern: number, hosts: ReferenceHosts): number[] {
  const received = referenceDispatch(
    [
      { x: [[0, 0]], topkIdx: [[1]] },
      { x: [], topkIdx: [] },
    ],
    { numExperts: 2 },
  );
  const input: ReferenceCombineInput = { received, outputs: [[], [[pattern, 0x8000]]], ...hosts };
  return referenceCombine(input, { rank: 0, token: 0, hidden: 2, topk: 1 });
}

test('a lone row keeps its bits; as f32 between hosts a NaN becomes the one that sums have', () => {
  for (const pattern of [0xff81, 0x7f80, 0x0001, 0x3f80]) {
    assert.deepEqual(oneRow(pattern, {}), [pattern, 0x8000]);
    assert.deepEqual(oneRow(pattern, { hosts: [[0], [1]] }), [pattern, 0x8000]);
  }
  const wide: ReferenceHosts = { hosts: [[0], [1]], combinePrecision: 'f32' };
  assert.deepEqual(oneRow(0xff81, wide), [0x7fc0, 0x8000]);
  for (const pattern of [0x7f80, 0x0001, 0x3f80]) assert.deepEqual(oneRow(pattern, wide), [pattern, 0x8000]);
});

test('with one rank per host a sum is that of one host', () => {
  const next = random(3);
  const ranks = 4;
  const received = referenceDispatch(
    Array.from({ length: ranks }, () => ({ x: [[0]], topkIdx: [[0, 1, 2, 3]] })),
    { numExperts: ranks },
  );
  const outputs = received.map((one) => rows(one.x.length, 64, next));
  const perRank = Array.from({ length: ranks }, (_, rank) => [rank]);
  for (let rank = 0; rank < ranks; rank++) {
    const of = { rank, token: 0, hidden: 64, topk: 4 };
    const want = referenceCombine({ received, outputs }, of);
    for (const combinePrecision of ['bf16', 'f32'] as const) {
      assert.deepEqual(referenceCombine({ received, outputs, hosts: perRank, combinePrecision }, of), want);
    }
  }
});

test('weights are summed in f32 per host, then over the hosts', () => {
  const received = referenceDispatch(
    [
      { x: [[0]], topkIdx: [[0, 1, 2]] },
      { x: [], topkIdx: [] },
      { x: [], topkIdx: [] },
    ],
    { numExperts: 3 },
  );
  const large = 2 ** 26;
  const input = { received, outputs: [], weights: [[[1]], [[large]], [[-large]]] };
  const of = { rank: 0, token: 0, hidden: 1, topk: 1 };
  assert.deepEqual(referenceCombineWeights(input, of), [0]);
  assert.deepEqual(referenceCombineWeights({ ...input, hosts: [[0], [1, 2]] }, of), [1]);
  assert.deepEqual(referenceCombineWeights({ ...input, hosts: [[0, 1], [2]] }, of), [0]);
});

/** One token of rank 0 whose choices are `choices`; expert e makes values[e] of it. Two experts per rank. */
function combineLayer(
  choices: readonly number[],
  values: readonly number[],
  of: ReferenceHosts & { readonly localCombine: boolean; readonly dtype?: 'bf16' | 'f16' | 'f32' },
): number {
  const inputs = Array.from({ length: values.length / 2 }, (_, rank) =>
    rank === 0 ? { x: [[0]], topkIdx: [choices] } : { x: [], topkIdx: [] },
  );
  const received = referenceLayerDispatch(inputs, values.length);
  const write = of.dtype === 'f16' ? toF16 : toBf16;
  const outputs = received.map((one) => one.rows.map((row) => [write(values[row.expert]!)]));
  return referenceLayerCombine(received, outputs, { rank: 0, token: 0, hidden: 1, ...of })[0]!;
}

test('a layer adds the choices of a host in their order, and hosts in order', () => {
  const large = 2 ** 26;
  // Experts 2 to 5 are of ranks 1 and 2. Choices in order lose the 1 between the large ones.
  const values = [0, 0, large, 1, -large, 0];
  assert.equal(combineLayer([2, 3, 4], values, { localCombine: false }), toBf16(0));
  assert.equal(combineLayer([2, 4, 3], values, { localCombine: false }), toBf16(1));
  assert.equal(combineLayer([2, 3, 4], values, { localCombine: false, hosts: [[0], [1, 2]] }), toBf16(0));
  assert.equal(combineLayer([2, 4, 3], values, { localCombine: false, hosts: [[0], [1, 2]] }), toBf16(1));
  // Rank 1 alone has 2^26 + 1; order of choices counts only within a host.
  assert.equal(combineLayer([2, 4, 3], values, { localCombine: false, hosts: [[0], [1], [2]] }), toBf16(0));
  assert.equal(combineLayer([4, 1, 2], [0, 1, large, 0, -large, 0], { localCombine: false }), toBf16(0));
  const hosts = [[0, 1], [2]];
  // Own host first, though choice 0 is another host's: 1 is lost in 2^26.
  assert.equal(combineLayer([4, 2, 1], [0, 1, large, 0, -large, 0], { localCombine: false }), toBf16(1));
  assert.equal(combineLayer([4, 2, 1], [0, 1, large, 0, -large, 0], { localCombine: false, hosts }), toBf16(0));
});

test('a layer with local combine rounds per rank, then per host', () => {
  const hosts = [[0], [1, 2]];
  // Rank 1 rounds to 256 and rank 2 has 1: 257 rounds to 256 for the host, and stays 257 as f32.
  const odd = [1, 0, 256, 1, 1, 0];
  assert.equal(combineLayer([0, 2, 3, 4], odd, { localCombine: true, hosts }), toBf16(256));
  assert.equal(combineLayer([0, 2, 3, 4], odd, { localCombine: true, hosts, combinePrecision: 'f32' }), toBf16(258));
  assert.equal(combineLayer([0, 2, 3, 4], odd, { localCombine: true }), toBf16(258));
});

test('a layer of f16 rounds hosts to f16', () => {
  // Between 2048 and 4096 an f16 counts in steps of 2.
  const values = [1, 0, 2048, 0, 1, 0];
  const of = { localCombine: false, dtype: 'f16', hosts: [[0], [1, 2]] } as const;
  assert.equal(combineLayer([0, 2, 4], values, of), toF16(2048));
  assert.equal(combineLayer([0, 2, 4], values, { ...of, combinePrecision: 'f32' }), toF16(2050));
});
