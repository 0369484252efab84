// A kernel of the caller that holds a multiprocessor and ends behind the calls beside it hangs none of them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('./processes/held-multiprocessors.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

for (const ranks of [1, 2]) {
  for (const scenario of ['lowLatency', 'manyTokens', 'overlapping', 'collectives']) {
    test(`a held multiprocessor beside calls of ${ranks} ranks: ${scenario}`, { skip: noGpu }, async () => {
      const { exitCode, transcript } = await runRanks(ranks, script, { args: [scenario], env, timeoutMs: 300_000 });
      assert.equal(exitCode, 0, transcript);
    });
  }
}
