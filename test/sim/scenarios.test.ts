// Random scenarios: whatever is lost, reordered, doubled, changed or dies, every promise of the transport holds.
import assert from 'node:assert/strict';
import test from 'node:test';
import { makeScenario } from '#lib/programs/sim/scenario.js';
import { runScenario } from '#lib/programs/sim/scenario-run.js';
import { testSeed } from '../support/seed.ts';

/** `npm run test:long` goes on to 10,000. */
const SCENARIOS = 300;

test(`${SCENARIOS} random scenarios`, () => {
  const first = testSeed();
  for (let seed = first; seed < first + SCENARIOS; seed += 1) {
    const { problems } = runScenario(makeScenario(seed));
    assert.deepEqual(problems, [], `again: weftline sim random --seed ${seed}`);
  }
});

test('packets that were cut short and joined are counted one by one', () => {
  // Two of them came together.
  const { problems } = runScenario(makeScenario(9970));
  assert.deepEqual(problems, []);
});

test('a message that is too large for its receive says so, also if a request of the same number was refused just before', () => {
  const { problems } = runScenario(makeScenario(48_213_769));
  assert.deepEqual(problems, []);
});

test('a scenario is determined by its seed', () => {
  const once = runScenario(makeScenario(42));
  const again = runScenario(makeScenario(42));
  assert.deepEqual(again, once);
  assert.notEqual(JSON.stringify(makeScenario(42)), JSON.stringify(makeScenario(43)));
});
