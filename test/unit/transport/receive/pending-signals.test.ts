// Signals that overtook each other on their paths take effect in the order in which they were sent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PendingSignals } from '#lib/transport/receive/pending-signals.js';
import type { Region } from '#lib/transport/engine/region.js';

/** A region that notes when one of its cells is changed. */
function noting(name: number, order: number[]): Region {
  const bytes = new Uint8Array(new SharedArrayBuffer(8));
  const region = {
    get bytes(): Uint8Array {
      order.push(name);
      return bytes;
    },
  };
  return region as unknown as Region;
}

test('signals are carried out in the order of their segments, whatever the order of arrival', () => {
  for (const start of [0, 2 ** 31 - 3, -3]) {
    const signals = new PendingSignals();
    const order: number[] = [];
    for (const index of [4, 1, 3, 0, 2, 5]) {
      signals.add((start + index) | 0, noting(index, order), { offset: 0, add: 1 });
    }
    assert.equal(signals.apply(start | 0), false);
    assert.equal(signals.apply((start + 4) | 0), true);
    assert.deepEqual(order, [0, 1, 2, 3]);
    assert.equal(signals.count, 2);
    signals.add((start + 4) | 0, noting(40, order), { offset: 0, add: 1 });
    assert.equal(signals.apply((start + 6) | 0), true);
    assert.deepEqual(order, [0, 1, 2, 3, 4, 40, 5]);
    assert.equal(signals.count, 0);
  }
});
