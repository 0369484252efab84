// EpBuffer and EPAll2AllLayer on GPUs against their references, by the programs that check it on the CPU: the same bytes in the same order.
import assert from 'node:assert/strict';
import test from 'node:test';
import { runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.ts';
import { testSeed } from '../support/seed.ts';
import { settingsTable } from '#lib/settings/settings.js';

const property = new URL('../local/ranks/ep-property.js', import.meta.url);
const lives = new URL('../local/ranks/ep-lives.js', import.meta.url);
const repeats = new URL('../local/ranks/ep-repeats.js', import.meta.url);
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
/** Time to compile the kernels of all the hidden sizes and top-k that random cases come upon. */
const timeoutMs = 300_000;
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

for (const ranks of rankCounts) {
  for (const what of ['buffer', 'layer']) {
    test(`${what}: 30 random cases on ${ranks} ranks agree with the reference`, { skip: noGpu }, async (context) => {
      context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
      const args = [what, '30', seed];
      const { exitCode, transcript } = await runRanks(ranks, property, { args, env, timeoutMs });
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    });
  }

  test(`two buffers and a layer of ${ranks} ranks at once; nothing is left of them`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, lives, { args: ['20'], env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });

  test(`50 dispatches and combines of ${ranks} ranks give the same bytes`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, repeats, { args: ['50'], env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const what of ['buffer', 'layer']) {
  test(`${what}: 15 random cases on 4 ranks, a group for each of 2 hosts`, { skip: noGpu }, async () => {
    const options = { args: [what, '15', seed], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
    const { exitCode, transcript } = await runRanks(4, property, options);
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}
