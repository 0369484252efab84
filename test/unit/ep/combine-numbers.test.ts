// Numbers of combines: the same on all ranks, also on one that has joined just now.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CombineNumbers } from '#lib/ep/low-latency/members/low-latency-cells.js';

test('where ranks are fixed combines are counted', () => {
  const numbers = new CombineNumbers(false);
  for (let count = 1; count <= 20; count++) {
    if (count % 3 === 0) numbers.beginDispatch(count);
    assert.equal(numbers.next(1 + Math.floor(count / 3)), count);
  }
});

test('where they come and go a number follows from the dispatch, whatever was before it', () => {
  const [old, young] = [new CombineNumbers(true), new CombineNumbers(true)];
  for (let dispatch = 1; dispatch < 40; dispatch++) {
    old.beginDispatch(dispatch);
    old.next(dispatch);
  }
  let last = old.next(39);
  for (const numbers of [old, young]) numbers.beginDispatch(40);
  for (let combine = 1; combine <= 15; combine++) {
    const number = old.next(40);
    assert.equal(young.next(40), number);
    assert.ok(number > last);
    last = number;
  }
  assert.throws(() => old.next(40), { code: 'WL_CAPACITY' });
  old.beginDispatch(41);
  assert.ok(old.next(41) > last);
});

test('a rank whose first dispatch is the second of two that overlap agrees with the others', () => {
  const [old, young] = [new CombineNumbers(true), new CombineNumbers(true)];
  for (let dispatch = 7; dispatch <= 12; dispatch += 2) {
    old.beginDispatch(dispatch);
    old.beginDispatch(dispatch + 1);
    if (dispatch >= 9) {
      if (dispatch > 9) young.beginDispatch(dispatch);
      young.beginDispatch(dispatch + 1);
    }
    const first = old.next(dispatch);
    if (dispatch > 9) assert.equal(young.next(dispatch), first);
    const second = old.next(dispatch + 1);
    assert.ok(second > first);
    if (dispatch >= 9) assert.equal(young.next(dispatch + 1), second);
  }
});

test('numbers grow where a later dispatch is combined first', () => {
  const numbers = new CombineNumbers(true);
  numbers.beginDispatch(3);
  numbers.beginDispatch(4);
  const all = [numbers.next(4), numbers.next(3), numbers.next(4)];
  numbers.beginDispatch(5);
  all.push(numbers.next(5));
  assert.deepEqual(
    all.toSorted((a, b) => a - b),
    all,
  );
});

test('the last combine in the memory of a result is known until the rank begins anew', () => {
  const numbers = new CombineNumbers(true);
  numbers.beginDispatch(4);
  assert.deepEqual(numbers.before(4), { number: 0, dispatch: 0 });
  numbers.use(4, numbers.next(4));
  assert.deepEqual(numbers.before(6), { number: 65, dispatch: 4 });
  assert.deepEqual(numbers.before(5), { number: 0, dispatch: 0 });
  numbers.beginAnew();
  assert.deepEqual(numbers.before(6), { number: 0, dispatch: 0 });
});
