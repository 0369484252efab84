// How many engines a transport has, and which cores they are pinned to.
import assert from 'node:assert/strict';
import test from 'node:test';
import { engineCount } from '#lib/transport/host/open-engines.js';
import { coreOf } from '#lib/transport/host/pin-cores.js';

test('there are as many engines as set, or one per eight cores of the rank', () => {
  const byCores = { transportThread: true, transportEngines: 0 };
  assert.deepEqual(
    [0.5, 2, 8, 16, 31, 32, 128].map((cores) => engineCount(byCores, cores)),
    [1, 1, 1, 2, 3, 4, 4],
  );
  assert.equal(engineCount({ transportThread: true, transportEngines: 16 }, 2), 16);
  assert.equal(engineCount({ transportThread: false, transportEngines: 16 }, 64), 1);
});

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
