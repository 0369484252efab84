// Times of calls: what a timer can hold.
import assert from 'node:assert/strict';
import test from 'node:test';
import { checkTimeout, Deadline, deadlineOf, secondNet, sooner } from '#lib/core/deadline.js';

const LONGEST_MS = 2 ** 31 - 1;

test('the second net is later than the time itself, and never more than a timer holds', () => {
  for (const timeoutMs of [0, 1, 100, 30_000, 3_600_000]) assert.ok(secondNet(timeoutMs) > timeoutMs);
  for (const timeoutMs of [LONGEST_MS - 1, LONGEST_MS]) assert.equal(secondNet(timeoutMs), LONGEST_MS);
});

test('a time that no timer holds is refused', () => {
  for (const timeoutMs of [0, LONGEST_MS]) assert.equal(checkTimeout(timeoutMs), timeoutMs);
  for (const timeoutMs of [-1, LONGEST_MS + 1, Number.NaN, Number.POSITIVE_INFINITY, '5' as unknown as number]) {
    assert.throws(() => checkTimeout(timeoutMs), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('a wait that is to end sooner does, by a tenth and at most a second, and names the same time', () => {
  for (const [timeoutMs, by] of [
    [0, 0],
    [1000, 100],
    [60_000, 1000],
  ] as const) {
    const deadline = new Deadline(timeoutMs);
    const early = sooner({ deadline }).deadline;
    assert.equal(early.timeoutMs, timeoutMs);
    assert.ok(Math.abs(deadline.endsAt - early.endsAt - by) < 1e-6);
  }
  assert.deepEqual(sooner({ timeoutMs: 5 }), { timeoutMs: 5 });
});

test('a deadline that this package did not make is refused', () => {
  const own = new Deadline(5);
  assert.equal(deadlineOf({ deadline: own }, 10), own);
  for (const deadline of [null, 5, {}, new Date(0)]) {
    const wait = { deadline: deadline as unknown as Deadline };
    assert.throws(() => deadlineOf(wait, 10), {
      code: 'WL_INVALID_ARGUMENT',
      message: /^Invalid deadline: .*timeoutMs/,
    });
  }
});
