// What a rank's share of the cores decides: how many engines it has, and how they behave where threads are more than cores.
import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings } from '#lib/settings/settings.js';
import { engineCount, isCrowded, suitCores } from '#lib/transport/host/rank-cores.js';

test('there are as many engines as set, or one per eight cores of the rank', () => {
  const byCores = { transportThread: true, transportEngines: 0 };
  assert.deepEqual(
    [0.5, 2, 8, 16, 31, 32, 128].map((cores) => engineCount(byCores, cores)),
    [1, 1, 1, 2, 3, 4, 4],
  );
  assert.equal(engineCount({ transportThread: true, transportEngines: 16 }, 2), 16);
  assert.equal(engineCount({ transportThread: false, transportEngines: 16 }, 64), 1);
});

test('a rank is crowded if its own thread and its engines have no core each', () => {
  const byCores = { transportThread: true, transportEngines: 0 };
  assert.deepEqual(
    [0.5, 1, 1.5, 2, 8, 32].map((cores) => isCrowded(byCores, cores)),
    [true, true, true, false, false, false],
  );
  assert.equal(isCrowded({ transportThread: true, transportEngines: 4 }, 4), true);
});

test('an engine on the thread of its rank counts like one of its own: other ranks run where it should answer', () => {
  const inline = { transportThread: false, transportEngines: 4 };
  assert.deepEqual(
    [0.5, 1, 1.5, 2, 4].map((cores) => isCrowded(inline, cores)),
    [true, true, true, false, false],
  );
});

function targetOf(settings: Parameters<typeof readSettings>[0], cores: number): number {
  return suitCores(readSettings(settings), cores).transportTargetDelayUs;
}

test('a crowded rank accepts the delays of the scheduler, unless a target is set', () => {
  assert.equal(targetOf({}, 0.5), 5000);
  assert.equal(targetOf({}, 8), 0);
  assert.equal(targetOf({ transportTargetDelayUs: 100 }, 0.5), 100);
});
