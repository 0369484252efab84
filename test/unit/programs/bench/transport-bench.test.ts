import assert from 'node:assert/strict';
import test from 'node:test';
import { segmentsPerSend } from '#lib/programs/bench/transport/bare-udp.js';
import { quantilesOf } from '#lib/programs/bench/harness.js';
import { targetsOf } from '#lib/programs/bench/transport/transport-ranks.js';
import { checkTransportWorkload, defaultTransportWorkload } from '#lib/programs/bench/transport/transport-session.js';

test('targetsOf() sends everyone to rank 0, or everyone to another one', () => {
  assert.deepEqual(targetsOf('incast', 4, 1), [[], [0], [0], [0]]);
  for (let seed = 0; seed < 20; seed += 1) {
    const targets = targetsOf('permutation', 7, seed).map(([target]) => target);
    assert.deepEqual(
      targets.toSorted((a, b) => (a ?? 0) - (b ?? 0)),
      [0, 1, 2, 3, 4, 5, 6],
    );
    assert.ok(targets.every((target, rank) => target !== rank));
  }
});

test('quantilesOf() gives min, P50, P90, P99, P99.9 and max of any order', () => {
  const times = Array.from({ length: 1001 }, (_, index) => 1000 - index);
  assert.deepEqual(quantilesOf(times), [0, 500, 900, 990, 999, 1000]);
  assert.deepEqual(quantilesOf([]), [0, 0, 0, 0, 0, 0]);
});

test('segmentsPerSend() stays below what one datagram may have and what the kernel cuts', () => {
  assert.deepEqual([1472, 8972, 512, 65_472].map(segmentsPerSend), [44, 7, 64, 1]);
});

test('checkTransportWorkload() names what is out of range', () => {
  checkTransportWorkload(defaultTransportWorkload);
  for (const wrong of [{ nflow: 0 }, { nreq: 1.5 }, { msize: 2 ** 31 }, { nflow: 64, nreq: 64 }]) {
    assert.throws(() => checkTransportWorkload({ ...defaultTransportWorkload, ...wrong }), {
      code: 'WL_INVALID_ARGUMENT',
    });
  }
});
