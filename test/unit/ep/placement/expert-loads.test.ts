import assert from 'node:assert/strict';
import test from 'node:test';
import { expertPlan, ExpertLoads, Placement } from 'weftline/ep/placement';
import type { RankGroup } from 'weftline/world';
import { readSettings } from '#lib/settings/settings.js';
import { withCode } from '../../../support/with-code.ts';

function invalid(words: RegExp): ReturnType<typeof withCode> {
  return withCode('WL_INVALID_ARGUMENT', words);
}

function numbers(rows: readonly Float64Array[]): readonly (readonly number[])[] {
  return rows.map((row) => [...row]);
}

test('ExpertLoads adds up the steps of a window and forgets older ones', () => {
  const loads = new ExpertLoads({ layers: 2, experts: 3, window: 2 });
  loads.addChoices(0, Int32Array.of(0, 1, -1, 3, 1));
  loads.addChoices(1, BigInt64Array.of(2n));
  assert.deepEqual(numbers(loads.own), [
    [1, 2, 0],
    [0, 0, 1],
  ]);
  loads.endStep();
  loads.addChoices(0, Int32Array.of(2));
  assert.deepEqual(numbers(loads.own)[0], [1, 2, 1]);
  loads.endStep();
  assert.deepEqual(numbers(loads.own), [
    [0, 0, 1],
    [0, 0, 0],
  ]);
  loads.endStep();
  assert.deepEqual(numbers(loads.own)[0], [0, 0, 0]);
});

test('counts of physical experts are added to the logical ones', () => {
  const loads = new ExpertLoads({ layers: 1, experts: 3, window: 4 });
  const plan = expertPlan({ layers: 1, experts: 3, ranks: 2, physicalToLogical: [2, 1, 2, 2, 0, 1] });
  const placement = new Placement(plan, { rank: 0, hosts: [[0, 1]] });
  loads.addReceived(0, [5, 1, 2], placement);
  assert.deepEqual(numbers(loads.own), [[0, 1, 7]]);
  assert.throws(() => loads.addReceived(0, [5], placement), withCode('WL_INVALID_ARGUMENT', /counts.length/));
  assert.throws(() => loads.addReceived(0, [5, 1, 0.5], placement), withCode('WL_INVALID_ARGUMENT', /counts\[2\]/));
  assert.throws(() => loads.addReceived(1, [5, 1, 2], placement), withCode('WL_INVALID_ARGUMENT', /layer/));
  assert.deepEqual(numbers(loads.own), [[0, 1, 7]]);
});

test('gather() sums over the ranks, and names ranks that count other things', async () => {
  const others: unknown[] = [{ layers: 1, experts: 2, counts: [10, 20] }];
  const group = {
    worldRank: 0,
    ranks: [0, 1],
    allGather: async (_name: string, value: unknown) => [value, ...others],
    settings: readSettings({}),
  } as unknown as RankGroup;
  const loads = new ExpertLoads({ layers: 1, experts: 2, window: 1 });
  loads.addChoices(0, Int32Array.of(1, 1, 0));
  assert.deepEqual(numbers(await loads.gather(group)), [[11, 22]]);
  others[0] = { layers: 1, experts: 3, counts: [1, 1, 1] };
  await assert.rejects(loads.gather(group), withCode('WL_CONFIG_MISMATCH', /1 layers of 3 experts on rank 1/));
});

test('choices, counts and placements of other types are named, and nothing is counted', () => {
  const loads = new ExpertLoads({ layers: 1, experts: 4, window: 1 });
  const placement = new Placement(expertPlan({ layers: 1, experts: 4, ranks: 1 }), { rank: 0, hosts: [[0]] });
  for (const choices of [undefined, null, 3, [0, 1], {}, new Float32Array(2)]) {
    assert.throws(
      () => loads.addChoices(0, choices as never),
      invalid(/topkIdx: expected an Int32Array or a BigInt64/),
    );
  }
  for (const counts of [undefined, null, 4, {}]) {
    assert.throws(() => loads.addReceived(0, counts as never, placement), invalid(/counts\.length: expected 4/));
  }
  for (const where of [undefined, null, {}, placement.plan]) {
    assert.throws(() => loads.addReceived(0, [1, 1, 1, 1], where as never), invalid(/placement: expected a Placement/));
  }
  assert.throws(
    () => new ExpertLoads({ layers: 1, experts: 4, window: 1, isMetric: 'no' as never }),
    invalid(/isMetric: expected true or false/),
  );
  assert.deepEqual(loads.own, [new Float64Array(4)]);
});

test('loads are gathered over a group', async () => {
  const loads = new ExpertLoads({ layers: 1, experts: 4, window: 1 });
  for (const group of [undefined, null, {}, 7]) await assert.rejects(loads.gather(group as never), invalid(/group: /));
});
