// Numbers of combines: the same on all ranks, also on one that has joined just now.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CombineNumbers } from '#lib/ep/low-latency/members/combine-numbers.js';

test('where ranks are fixed combines are counted', () => {
  const numbers = new CombineNumbers(false);
  for (let count = 1; count <= 20; count++) {
    if (count % 3 === 0) numbers.beginDispatch(count);
    assert.deepEqual(numbers.next(), { number: count, count });
    assert.equal(numbers.numberOf(count), count);
  }
});

test('where they come and go a number follows from the last dispatch, whatever was before it', () => {
  const [old, young] = [new CombineNumbers(true), new CombineNumbers(true)];
  for (let dispatch = 1; dispatch < 40; dispatch++) {
    old.beginDispatch(dispatch);
    old.next();
  }
  let last = old.next().number;
  for (const numbers of [old, young]) numbers.beginDispatch(40);
  for (let combine = 1; combine <= 15; combine++) {
    const { number } = old.next();
    assert.equal(young.next().number, number);
    assert.ok(number > last);
    last = number;
  }
  assert.throws(() => old.next(), { code: 'WL_CAPACITY' });
  old.beginDispatch(41);
  assert.ok(old.next().number > last);
});

test('the last combine in the memory of a result is known until the rank begins anew', () => {
  const numbers = new CombineNumbers(true);
  numbers.beginDispatch(4);
  assert.deepEqual(numbers.before(4), { number: 0, dispatch: 0 });
  numbers.use(4, numbers.next().number);
  assert.deepEqual(numbers.before(6), { number: 65, dispatch: 4 });
  assert.deepEqual(numbers.before(5), { number: 0, dispatch: 0 });
  numbers.beginAnew();
  assert.deepEqual(numbers.before(6), { number: 0, dispatch: 0 });
});
