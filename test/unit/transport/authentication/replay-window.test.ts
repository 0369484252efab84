// Compares which numbers of packets were taken with a plain set, in every order, also where 32 bits end.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../../support/fast-check.ts';
import { ReplayWindow } from '#lib/transport/authentication/packet-guard.js';

/** How far behind the newest a number may be. Blocks of 32 are forgotten together. */
const SURE = 65_536 - 32;

test('each number is taken once, in any order, and one that is too old never', () => {
  const steps = fc.array(
    fc.oneof(
      { arbitrary: fc.integer({ min: -40, max: 40 }), weight: 8 },
      { arbitrary: fc.integer({ min: -70_000, max: 70_000 }), weight: 2 },
      { arbitrary: fc.constantFrom(-SURE, -65_536, 65_535, 65_536, 1_000_000, 2 ** 31 - 1), weight: 1 },
    ),
    { maxLength: 300 },
  );
  const starts = fc.constantFrom(0, 5, 2 ** 31 - 100, 2 ** 32 - 100, 2 ** 33 - 3, 2 ** 50);
  fc.assert(
    fc.property(starts, steps, (start, moves) => {
      const window = new ReplayWindow(0);
      const taken = new Set<number>();
      let newest = -1;
      let at = start;
      for (const move of moves) {
        at = Math.max(0, newest === -1 ? start : (move > 0 ? newest : at) + move);
        const isNew = !taken.has(at) && window.take(at);
        if (newest - at < SURE) assert.equal(isNew, !taken.has(at), `${at}, newest ${newest}`);
        if (newest - at >= 65_536) assert.ok(!isNew);
        if (taken.has(at)) assert.ok(!window.take(at));
        if (isNew) taken.add(at);
        if (isNew) newest = Math.max(newest, at);
        assert.equal(window.newest, newest);
      }
    }),
    { numRuns: 300 },
  );
});

test('nearest() completes 32 bits to the closest number', () => {
  for (const newest of [0, 77, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 7 * 2 ** 32 + 12, 2 ** 50 + 3]) {
    const window = new ReplayWindow(0);
    window.take(newest);
    for (const distance of [0, 1, -1, 1000, -1000, 2 ** 31 - 1, -(2 ** 31)]) {
      const number = newest + distance;
      assert.equal(window.nearest((number % 2 ** 32) | 0), number, `${newest} ${distance}`);
    }
  }
  assert.equal(new ReplayWindow(0).nearest(0), 0);
  assert.ok(new ReplayWindow(0).nearest(-1) < 0);
  assert.equal(new ReplayWindow(2 ** 32 - 1).nearest(-1), 2 ** 32 - 1);
  assert.equal(new ReplayWindow(2 ** 32 - 1).nearest(0), 2 ** 32);
});
