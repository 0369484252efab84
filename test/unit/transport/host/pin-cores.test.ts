// Tests which cores the engines of a transport are pinned to.
import assert from 'node:assert/strict';
import test from 'node:test';
import { coreOf } from '#lib/transport/host/rank-cores.js';

function coresOf(text: string): (number | undefined)[] {
  return [0, 1, 2, 3, 4].map((engine) => coreOf(text, engine));
}

test('each engine has its core of the list, and those beyond it the cores that follow', () => {
  assert.deepEqual(coresOf(''), [undefined, undefined, undefined, undefined, undefined]);
  assert.deepEqual(coresOf('3'), [3, 4, 5, 6, 7]);
  assert.deepEqual(coresOf('4, 6,8-11'), [4, 6, 8, 9, 10]);
  for (const text of ['a', '-1', '3-2', '1,,2', '1.5']) {
    assert.throws(() => coreOf(text, 0), { code: 'WL_CONFIG', message: /transportPinCore/ });
  }
});
