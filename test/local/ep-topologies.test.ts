// EpBuffer and EPAll2AllLayer over groups on several hosts, by the programs that check them on one: the same bytes in the
// same order as the references. WEFTLINE_TEST_EP: how many times as much as in the gate; WEFTLINE_TEST_EXTENT=whole:
// all tests on all placements.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { environmentOf, topologies, twoGroups, type Topology } from './support/topologies.ts';
import { isWhole } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';

const property = new URL('./ranks/ep-property.js', import.meta.url);
const repeats = new URL('./ranks/ep-repeats.js', import.meta.url);
const example = new URL('./ranks/ep-example.js', import.meta.url);
const growing = new URL('./ranks/ep-growing.js', import.meta.url);
const oneExpert = new URL('./ranks/ep-one-expert.js', import.meta.url);
const lives = new URL('./ranks/ep-lives.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run; the seed stands in every failure's output. */
const seed = String(testSeed());
const times = Number(process.env['WEFTLINE_TEST_EP'] ?? 1);
const timeoutMs = 600_000 * times;

/** Placements that the gate has; the nightly run has all of them, and more of each. */
const isSampled = (names: readonly string[]): ((topology: Topology) => boolean) => {
  return ({ name }) => isWhole || times > 1 || names.includes(name);
};

for (const topology of topologies.filter(isSampled(['2×2 with ranks in turn', '3+1']))) {
  const { name, ranks } = topology;
  const env = environmentOf(topology);

  test(`${name}: ${4 * times} random cases of buffer and layer agree with the reference`, async () => {
    const args = ['both', String(4 * times), seed];
    const { exitCode, transcript } = await runRanks(ranks, property, { args, env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
    assert.deepEqual(
      readdirSync('/dev/shm').filter((file) => file.includes(jobId)),
      [],
    );
  });
}

for (const topology of topologies.filter(isSampled([]))) {
  const { name, ranks } = topology;
  test(`${name}: ${15 * times} dispatches and combines with stragglers give the same bytes`, async () => {
    const options = { args: [String(15 * times)], env: environmentOf(topology), timeoutMs };
    const { exitCode, transcript } = await runRanks(ranks, repeats, options);
    assert.equal(exitCode, 0, transcript);
  });
}

for (const topology of topologies.filter(({ name }) => name === '2×2' || (isWhole && name === '4×1'))) {
  test(`${topology.name}: sums are right while memory grows between calls`, async () => {
    const options = { args: ['10'], env: environmentOf(topology), timeoutMs };
    const { exitCode, transcript } = await runRanks(topology.ranks, growing, options);
    assert.equal(exitCode, 0, transcript);
  });
}

// What takes many ranks, or memory of all of them.
if (isWhole) {
  test(`${twoGroups.name}: two buffers and a layer of each at once; nothing is left of them`, async () => {
    const options = { args: [String(times)], env: environmentOf(twoGroups), timeoutMs };
    const { exitCode, transcript } = await runRanks(twoGroups.ranks, lives, options);
    assert.equal(exitCode, 0, transcript);
  });

  test(`${twoGroups.name}: random cases agree with the reference in both`, async () => {
    const options = { args: ['both', String(3 * times), seed], env: environmentOf(twoGroups), timeoutMs };
    const { exitCode, transcript } = await runRanks(twoGroups.ranks, property, options);
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });

  test('32 ranks on 4 hosts, 256 experts, top 8: the sums are right', async () => {
    const env = { WEFTLINE_HOSTS: '4' };
    const { exitCode, ranks, transcript } = await runRanks(32, example, { env, timeoutMs: 600_000 });
    assert.equal(exitCode, 0, transcript);
    for (const rank of ranks) assert.deepEqual(resultOf(rank), { hosts: 4, ranks: 32 }, transcript);
  });

  for (const topology of topologies.filter(({ name }) => ['2×2', '4×1'].includes(name))) {
    test(`${topology.name}: two buffers and a layer at once, each rank in its own order; nothing is left`, async () => {
      const options = { args: [String(times)], env: environmentOf(topology), timeoutMs };
      const { exitCode, transcript } = await runRanks(topology.ranks, lives, options);
      assert.equal(exitCode, 0, transcript);
    });
  }

  for (const topology of topologies.filter(({ name }) => name === '3×2' || name === '2×2')) {
    for (const what of ['buffer', 'layer']) {
      test(`${what}, ${topology.name}: all tokens go to one expert; memory is what the sizes say`, async () => {
        const options = { args: [what, '3'], env: environmentOf(topology), timeoutMs };
        const { exitCode, transcript } = await runRanks(topology.ranks, oneExpert, options);
        assert.equal(exitCode, 0, transcript);
      });
    }
  }
}
