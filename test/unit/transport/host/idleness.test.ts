// An engine with nothing to do polls while somebody waits for it, but not for ever.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Idleness } from '#lib/transport/host/engine-worker.js';

test('polls() is false at once where nobody waits', () => {
  const idleness = new Idleness(() => false);
  assert.equal(idleness.polls(), false);
});

test('polls() ends by itself, and begins anew after there was something to do', () => {
  const idleness = new Idleness(() => true);
  for (let phase = 0; phase < 3; phase++) {
    let polls = 0;
    while (idleness.polls()) assert.ok(++polls < 10_000_000, 'it polls for ever');
    assert.equal(idleness.polls(), false);
    idleness.end();
  }
});

test('polls() is false from the look on that finds nobody waiting any more', () => {
  let waits = true;
  const idleness = new Idleness(() => waits);
  idleness.polls();
  waits = false;
  assert.equal(idleness.polls(), false);
});
