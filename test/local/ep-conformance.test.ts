// EpBuffer and EPAll2AllLayer against the reference: random cases on real ranks, bit for bit.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import test from 'node:test';
import { runRanks } from './support/run-ranks.ts';
import { isWhole, sampled } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';

const script = new URL('./ranks/ep-property.js', import.meta.url);
const lives = new URL('./ranks/ep-lives.js', import.meta.url);
const elsewhere = new URL('./ranks/ep-elsewhere.js', import.meta.url);
const repeats = new URL('./ranks/ep-repeats.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run; the seed stands in every failure's output. */
const seed = String(testSeed());
/** WEFTLINE_TEST_EXTENT=whole: more cases of each. */
const times = isWhole ? 4 : 1;
const timeoutMs = 600_000 * times;

for (const [ranks, runs] of [
  [1, 20],
  ...(isWhole ? ([[2, 20]] as const) : []),
  [3, 10],
  ...(isWhole
    ? ([
        [4, 20],
        [7, 5],
      ] as const)
    : []),
] as const) {
  const cases = runs * times;
  test(`${cases} random cases of buffer and layer on ${ranks} ranks agree with the reference`, async () => {
    const { exitCode, transcript } = await runRanks(ranks, script, { args: ['both', String(cases), seed], timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
    assert.deepEqual(
      readdirSync('/dev/shm').filter((name) => name.includes(jobId)),
      [],
    );
  });
}

for (const hosts of isWhole ? ['2', '3+1'] : ['3+1']) {
  const cases = 5 * times;
  test(`${cases} random cases of buffer and layer on 4 ranks, a group for each of ${hosts} hosts`, async () => {
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(4, script, { args: ['both', String(cases), seed], env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });

  test(`two groups for ${hosts} hosts, with two buffers and a layer each, at once`, async () => {
    const { exitCode, transcript } = await runRanks(4, lives, { args: ['5'], env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(exitCode, 0, transcript);
  });
}

test('two buffers and a layer at once, each rank in its own order; nothing is left of them', async () => {
  const { exitCode, transcript } = await runRanks(3, lives, { args: [isWhole ? '10' : '5'] });
  assert.equal(exitCode, 0, transcript);
});

// Few bytes are copied into the window; many are read out of the ranks that hold them, of some ranks only in some rounds.
for (const hidden of sampled(['7168', '64'], 1)) {
  test(`rows of ${hidden} that combine takes may lie anywhere, also over its result and where peers read`, async () => {
    const { exitCode, transcript } = await runRanks(4, elsewhere, { args: [hidden] });
    assert.equal(exitCode, 0, transcript);
  });
}

test('100 dispatches and combines with stragglers give the same bytes', async () => {
  const { exitCode, transcript } = await runRanks(4, repeats, { args: ['100'] });
  assert.equal(exitCode, 0, transcript);
});
