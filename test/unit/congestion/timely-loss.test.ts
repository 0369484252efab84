// TIMELY and loss: the rate halves once per round trip where the delay shows a queue, and not otherwise.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type Congestion, congestionRules } from '#lib/congestion/congestion.js';

function timely(): Congestion {
  return congestionRules.timely.create({
    segmentBytes: 4096,
    linkRate: 12_500,
    targetDelay: 10,
    maxWindow: 1_000_000,
  });
}

test('a loss at high delay halves the rate, once per round trip', () => {
  const control = timely();
  control.onAck({ now: 100, ackedBytes: 4096, rtt: 60, baseRtt: 10, marked: false });
  const before = control.rate;
  control.onLoss(110);
  control.onLoss(120);
  assert.equal(control.rate, before / 2);
  control.onLoss(171);
  assert.equal(control.rate, before / 4);
});

test('a loss at low delay changes nothing', () => {
  const control = timely();
  control.onAck({ now: 100, ackedBytes: 4096, rtt: 15, baseRtt: 10, marked: false });
  const before = control.rate;
  control.onLoss(110);
  assert.equal(control.rate, before);
});
