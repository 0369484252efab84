// Expert parallelism across simulated hosts: whatever the network does, calls bring what the reference computes, or all ranks hear why not.
import assert from 'node:assert/strict';
import test from 'node:test';
import { runEpScenario } from '#lib/programs/sim/ep/ep-run.js';
import { makeEpScenario } from '#lib/programs/sim/ep/ep-scenario.js';
import { runEpShape } from '#lib/programs/sim/ep/ep-shape.js';
import { star, defaultLink } from '#lib/programs/sim/topology.js';
import { testSeed } from '../support/seed.ts';

/** `npm run test:long` goes on to 10,000. */
const SCENARIOS = 40;

test(`${SCENARIOS} random scenarios`, async () => {
  const first = testSeed();
  for (let seed = first; seed < first + SCENARIOS; seed += 1) {
    const { problems } = await runEpScenario(makeEpScenario(seed));
    assert.deepEqual(problems, [], `again: weftline sim ep --count 1 --seed ${seed}`);
  }
});

test('a scenario is determined by its seed', async () => {
  const once = await runEpScenario(makeEpScenario(42));
  const again = await runEpScenario(makeEpScenario(42));
  assert.deepEqual(again, once);
});

test('deaths, calls that are given up, links that fail and memory that is used in turn are among the scenarios', () => {
  const scenarios = Array.from({ length: 100 }, (_, seed) => makeEpScenario(seed));
  const count = (is: (scenario: (typeof scenarios)[number]) => unknown): number => scenarios.filter(is).length;
  for (const is of [
    count(({ death }) => death),
    count(({ cancellation }) => cancellation),
    count(({ network }) => network.faults.length > 0),
    count(({ config }) => config.numRdmaBytes),
    count(({ network }) => (network.engines ?? 1) > 1),
    count(({ ranks }) => ranks > 4),
  ]) {
    assert.ok(is >= 3);
  }
});

const shape = {
  topology: star({ hosts: 3, link: defaultLink }),
  hostGigabitsPerSecond: 100,
  ranks: 3,
  tokens: 64,
  hidden: 1024,
  topk: 4,
  experts: 24,
  combinePrecision: 'bf16',
  rounds: 2,
  seed: 1,
  paths: 4,
  segmentBytes: 4096,
  pollDelay: 2,
  wakeDelay: 5,
  hangUpDelay: 1000,
  rail: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: true, join: false },
  settings: {},
  until: 1e6,
} as const;

test('calls take the time that links need for their rows, and some more', async () => {
  const { phases } = await runEpShape(shape);
  for (const { phase, ratio, times } of phases) {
    assert.equal(times.length, 2, phase);
    assert.ok(ratio > 1 && ratio < 4, `${phase}: ${ratio}`);
  }
  assert.deepEqual((await runEpShape(shape)).phases, phases);
});

function countTimers(): number {
  return process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
}

test('nothing waits any more once a simulation has run out of its time', async () => {
  const before = countTimers();
  await assert.rejects(runEpShape({ ...shape, until: 20 }), { code: 'WL_TIMEOUT', message: /Only 0 dispatches/ });
  assert.equal(countTimers(), before);
});

test('the process has its own clock again', async () => {
  await runEpScenario(makeEpScenario(1));
  const before = performance.now();
  await new Promise((resolve) => setTimeout(resolve, 2));
  assert.ok(performance.now() > before);
});
