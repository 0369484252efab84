import assert from 'node:assert/strict';
import test from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import { packApart, packEvenly } from '#lib/ep/placement/rebalance.js';
import { rebalanceExperts } from 'weftline/ep/placement';

/** Copies beyond the first of an expert in its pack. */
function together(items: ArrayLike<number>, packs: number): number {
  const all = Array.from(items);
  const size = all.length / packs;
  const perPack = Array.from({ length: packs }, (_, pack) => new Set(all.slice(pack * size, (pack + 1) * size)).size);
  return all.length - perPack.reduce((sum, distinct) => sum + distinct);
}

function heaviest(loads: Float64Array, places: Int32Array, packs: number): number {
  const sums = new Float64Array(packs);
  for (const [copy, place] of places.entries()) sums[Math.floor((place * packs) / loads.length)]! += loads[copy]!;
  return Math.max(...sums);
}

test('packApart() puts no more copies together than packEvenly(), and no pack has more than its heaviest one', () => {
  const random = seededRandom(15);
  for (let round = 0; round < 300; round++) {
    const [packs, size] = [2 + Math.floor(random() * 5), 2 + Math.floor(random() * 4)];
    const experts = Math.max(1, Math.floor(random() * packs * size));
    const ofExpert = Float64Array.from({ length: experts }, () => Math.floor(random() * 50));
    const items = Int32Array.from({ length: packs * size }, () => Math.floor(random() * experts));
    const loads = Float64Array.from(items, (item) => ofExpert[item]!);
    const [even, apart] = [packEvenly(loads, packs), packApart({ items, loads }, packs)];
    const itemsAt = (places: Int32Array): number[] => Array.from(places, (_, place) => items[places.indexOf(place)]!);
    assert.deepEqual(
      [...apart].toSorted((one, other) => one - other),
      [...apart.keys()],
    );
    assert.ok(heaviest(loads, apart, packs) <= heaviest(loads, even, packs) + 1e-9);
    assert.ok(together(itemsAt(apart), packs) <= together(itemsAt(even), packs));
  }
});

test('of 8 experts and 8 copies on 4 ranks few copies stay together but those that must', () => {
  let [left, forced] = [0, 0];
  for (let seed = 1; seed <= 200; seed++) {
    const random = seededRandom(seed);
    const normal = (): number => random() + random() + random() + random() - 2;
    const loads = Array.from({ length: 8 }, () => Math.round(1000 * Math.exp(2.5 * normal())));
    const plan = rebalanceExperts([loads], { replicas: 16, ranks: 4 });
    left += together(plan.physicalToLogical, 4);
    for (const copies of plan.replicaCounts) forced += Math.max(0, copies - 4);
  }
  assert.ok(left - forced <= 0.25 * forced, `${left} together, of which ${forced} must be`);
});
