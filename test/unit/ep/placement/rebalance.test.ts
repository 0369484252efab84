import assert from 'node:assert/strict';
import test from 'node:test';
import { expertPlan, rebalanceExperts, rebalanceExpertsAsync } from 'weftline/ep/placement';
import { withCode } from '../../../support/with-code.ts';

/** The example that DeepSeek published with EPLB: two layers, 16 copies on two nodes of four GPUs. */
const published = {
  weights: [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
  ],
  options: { replicas: 16, groups: 4, nodes: 2, ranks: 8 },
  physicalToLogical: [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
  ],
};

test('rebalanceExperts() gives what EPLB publishes for its example', () => {
  const plan = rebalanceExperts(published.weights, published.options);
  assert.deepEqual([...plan.physicalToLogical], published.physicalToLogical.flat());
  assert.deepEqual([plan.layers, plan.experts, plan.ranks, plan.physical, plan.maxReplicas], [2, 12, 8, 16, 2]);
  assert.deepEqual([...plan.replicaCounts], [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1, 1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1]);
  assert.deepEqual([...plan.logicalToPhysical.subarray(0, 6)], [12, -1, 13, 15, 11, -1]);
});

test('rebalanceExpertsAsync() gives the same plan from another thread, and ends by its signal', async () => {
  const { weights, options } = published;
  assert.deepEqual(await rebalanceExpertsAsync(weights, options), rebalanceExperts(weights, options));
  const signal = AbortSignal.abort(new Error('no longer'));
  await assert.rejects(rebalanceExpertsAsync(weights, options, { signal }), /no longer/);
  await assert.rejects(rebalanceExpertsAsync(weights, { ...options, ranks: 3 }), withCode('WL_INVALID_ARGUMENT'));
});

test('with policy global, groups and nodes make no difference', () => {
  const [weights, { replicas, ranks }] = [published.weights, published.options];
  const plain = rebalanceExperts(weights, { replicas, ranks });
  assert.deepEqual(rebalanceExperts(weights, { ...published.options, policy: 'global' }), plain);
  // Three groups cannot be divided between two nodes.
  assert.deepEqual(rebalanceExperts(weights, { ...published.options, groups: 3 }), plain);
  assert.notDeepEqual(rebalanceExperts(weights, published.options), plain);
});

test('ties go to the expert with fewer copies, then to the first, and experts without load share the copies', () => {
  assert.deepEqual([...rebalanceExperts([[0, 0, 0]], { replicas: 6, ranks: 1 }).replicaCounts], [2, 2, 2]);
  assert.deepEqual([...rebalanceExperts([[5, 5, 5]], { replicas: 4, ranks: 1 }).replicaCounts], [2, 1, 1]);
  assert.deepEqual([...rebalanceExperts([[10, 20]], { replicas: 4, ranks: 1 }).replicaCounts], [2, 2]);
  // Equal copies fill the ranks in turn; one copy per rank stays in order.
  assert.deepEqual([...rebalanceExperts([[1, 1, 1, 1]], { replicas: 4, ranks: 2 }).physicalToLogical], [0, 2, 1, 3]);
  assert.deepEqual([...rebalanceExperts([[1, 4, 2, 3]], { replicas: 4, ranks: 4 }).physicalToLogical], [0, 1, 2, 3]);
});

test('rebalanceExperts() names what is wrong', () => {
  const weights = [[1, 2, 3, 4]];
  const wrong: readonly (readonly [weights: unknown, options: object, words: RegExp])[] = [
    [weights, { replicas: 6, ranks: 4 }, /replicas: expected a multiple of the 4 ranks, at least the 4 experts, got 6/],
    [weights, { replicas: 2, ranks: 2 }, /replicas: .* got 2/],
    [weights, { replicas: 6, ranks: 3, nodes: 2 }, /ranks: expected a multiple of the 2 nodes, got 3/],
    [
      weights,
      { replicas: 4, ranks: 2, nodes: 2, policy: 'hierarchical' },
      /groups: expected a multiple of the 2 nodes/,
    ],
    [weights, { replicas: 4, ranks: 1, groups: 3 }, /groups: expected a divisor of the 4 experts, got 3/],
    [weights, { replicas: 4, ranks: 1, policy: 'none' }, /policy: expected hierarchical or global, got "none"/],
    [weights, { replicas: 4, ranks: 1.5 }, /ranks: expected a whole number/],
    [weights, { replicas: 4, rank: 1 }, /did you mean ranks\?/],
    [[[1, 2], [1]], { replicas: 2, ranks: 1 }, /weights\[1\]: expected the loads of 2 experts/],
    [[[1, -2]], { replicas: 2, ranks: 1 }, /weights\[0\]\[1\]: expected a finite number of at least 0, got -2/],
    [[[1, Number.NaN]], { replicas: 2, ranks: 1 }, /weights\[0\]\[1\]/],
    [[], { replicas: 2, ranks: 1 }, /Invalid weights: /],
    [new Float64Array(4), { replicas: 4, ranks: 1 }, /Invalid weights: /],
  ];
  for (const [loads, options, words] of wrong) {
    assert.throws(
      () => rebalanceExperts(loads as number[][], options as never),
      withCode('WL_INVALID_ARGUMENT', words),
    );
  }
});

test('expertPlan() takes tables from elsewhere and names what is wrong with them', () => {
  const plan = expertPlan({ layers: 1, experts: 2, ranks: 2, physicalToLogical: [1, 0, 1, 1] });
  assert.deepEqual([...plan.logicalToPhysical], [1, -1, -1, 0, 2, 3]);
  assert.deepEqual([...expertPlan({ layers: 2, experts: 4, ranks: 2 }).physicalToLogical], [0, 1, 2, 3, 0, 1, 2, 3]);
  const shape = { layers: 1, experts: 2, ranks: 2 };
  for (const [physicalToLogical, words] of [
    [[0, 1, 1], /physicalToLogical.length: expected 1 layers of a multiple of 2/],
    [[0, 0], /no copy of expert 1/],
    [[0, 2], /physicalToLogical\[0\]\[1\]: expected an expert, 0 to 1, got 2/],
    [[0, 0.5], /physicalToLogical\[0\]\[1\]: .* got 0.5/],
  ] as const) {
    assert.throws(() => expertPlan({ ...shape, physicalToLogical }), withCode('WL_INVALID_ARGUMENT', words));
  }
});
