import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings } from '#lib/settings/settings.js';
import { packetSpinUs, SpinTime } from '#lib/threads/spin-time.js';

test('waits that last too long for polling make the next ones sleep sooner, down to a floor', () => {
  const spin = new SpinTime(200);
  assert.equal(spin.milliseconds, 0.2);
  spin.learn(5);
  assert.equal(spin.milliseconds, 0.1);
  for (let wait = 0; wait < 20; wait += 1) spin.learn(0.3);
  assert.equal(spin.milliseconds, 0.01);
});

test('a short wait, slept through or not, makes the next ones poll for twice as long, never beyond the most', () => {
  const spin = new SpinTime(200);
  for (let wait = 0; wait < 20; wait += 1) spin.learn(5);
  spin.learn(0.06);
  assert.equal(spin.milliseconds, 0.12);
  spin.learn(0.02);
  assert.equal(spin.milliseconds, 0.12);
  spin.learn(0.19);
  assert.equal(spin.milliseconds, 0.2);
});

test('where others keep the processor for long, a hundred waits sleep early', () => {
  const spin = new SpinTime(200);
  assert.equal(spin.lent(0.1), false);
  assert.equal(spin.lent(3), true);
  spin.learn(0.001);
  for (let wait = 0; wait < 100; wait += 1) {
    assert.equal(spin.milliseconds, 0.01);
    spin.learn(0.06);
  }
  assert.equal(spin.milliseconds, 0.2);
});

test('a most of zero never polls', () => {
  const spin = new SpinTime(0);
  assert.equal(spin.milliseconds, 0);
  spin.learn(0.001);
  assert.equal(spin.milliseconds, 0);
});

test('polling is short where it is in vain, and while others need the processor', () => {
  const spin = new SpinTime(200);
  assert.equal(spin.isShort, false);
  for (let wait = 0; wait < 5; wait += 1) spin.learn(5);
  assert.equal(spin.isShort, true);
  spin.learn(0.05);
  assert.equal(spin.isShort, false);
  spin.lent(3);
  assert.equal(spin.isShort, true);
});

test('threads poll for packets for longer where processors are plenty, unless a time is set', () => {
  const unset = readSettings();
  assert.deepEqual(
    [1, 2, 7, 8, 32].map((processors) => packetSpinUs(unset, processors)),
    [20, 20, 20, 200, 200],
  );
  assert.equal(packetSpinUs(readSettings({ transportSpinUs: 1 }), 32), 1);
  assert.equal(packetSpinUs(readSettings({ transportSpinUs: 50 }), 32), 50);
});

test('who lets waits poll for long wants them back from threads that keep the processor for less', () => {
  const spin = new SpinTime(20_000);
  assert.equal(spin.lent(19), false);
  assert.equal(spin.isShort, false);
  assert.equal(spin.lent(21), true);
});
