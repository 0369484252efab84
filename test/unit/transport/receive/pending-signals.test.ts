// Signals that overtook each other on their paths take effect in the order in which they were sent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PendingSignals, RECEIVE_WINDOW_SEGMENTS } from '#lib/transport/receive/receive-side.js';
import type { Region } from '#lib/transport/engine/region.js';

const cell = { offset: 0, add: 1 };

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
      signals.add((start + index) | 0, noting(index, order), cell);
    }
    assert.equal(signals.apply(start | 0), false);
    assert.equal(signals.apply((start + 4) | 0), true);
    assert.deepEqual(order, [0, 1, 2, 3]);
    assert.equal(signals.count, 2);
    signals.add((start + 4) | 0, noting(40, order), cell);
    assert.equal(signals.apply((start + 6) | 0), true);
    assert.deepEqual(order, [0, 1, 2, 3, 4, 40, 5]);
    assert.equal(signals.count, 0);
  }
});

test('as many signals wait as the receive window has segments', () => {
  const count = RECEIVE_WINDOW_SEGMENTS;
  const signals = new PendingSignals();
  const order: number[] = [];
  const forgotten = noting(-1, order);
  for (let round = 0; round < 3; round++) {
    const start = round * count - 100;
    for (let index = count - 1; index >= 0; index -= 2) signals.add(start + index, noting(index, order), cell);
    for (let index = 0; index < count; index += 2)
      signals.add(start + index, index === 10 ? forgotten : noting(index, order), cell);
    signals.forget(forgotten);
    for (let next = start + 1; next <= start + count; next++) assert.equal(signals.apply(next), true);
    const all = Array.from({ length: count }, (_, index) => index);
    assert.deepEqual(
      order,
      all.filter((index) => index !== 10),
    );
    order.length = 0;
  }
});
