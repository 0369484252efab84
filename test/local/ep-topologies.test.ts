// EpBuffer and EPAll2AllLayer over groups on several hosts, by the programs that check them on one: the same bytes in the
// same order as the references. WEFTLINE_TEST_EP: how many times as much as in the gate.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { runRanks } from './support/run-ranks.ts';
import { environmentOf, topologies } from './support/topologies.ts';
import { testSeed } from '../support/seed.ts';

const property = new URL('./ranks/ep-property.js', import.meta.url);
const repeats = new URL('./ranks/ep-repeats.js', import.meta.url);
const lives = new URL('./ranks/ep-lives.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run; the seed stands in every failure's output. */
const seed = String(testSeed());
const times = Number(process.env['WEFTLINE_TEST_EP'] ?? 1);
const timeoutMs = 60_000 * times;

for (const topology of topologies) {
  const { name, ranks } = topology;
  const env = environmentOf(topology);

  for (const what of ['buffer', 'layer']) {
    test(`${what}, ${name}: ${12 * times} random cases agree with the reference`, async () => {
      const args = [what, String(12 * times), seed];
      const { exitCode, transcript } = await runRanks(ranks, property, { args, env, timeoutMs });
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
      const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
      assert.deepEqual(
        readdirSync('/dev/shm').filter((file) => file.includes(jobId)),
        [],
      );
    });
  }

  test(`${name}: ${30 * times} dispatches and combines with stragglers give the same bytes`, async () => {
    const { exitCode, transcript } = await runRanks(ranks, repeats, { args: [String(30 * times)], env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const topology of topologies.filter(({ name }) => ['2×2', '3+1'].includes(name))) {
  test(`${topology.name}: two buffers and a layer at once, each rank in its own order; nothing is left of them`, async () => {
    const options = { args: [String(3 * times)], env: environmentOf(topology), timeoutMs };
    const { exitCode, transcript } = await runRanks(topology.ranks, lives, options);
    assert.equal(exitCode, 0, transcript);
  });
}
