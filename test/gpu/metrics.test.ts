// Metrics of ranks with GPUs: what the host hears of rows is what CPU ranks count.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('../local/ranks/row-bytes.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
const timeoutMs = 120_000;

test('bytes of rows of EpBuffer, also to another host', { skip: noGpu }, async () => {
  for (const hosts of ['1', '2']) {
    const args = ['buffer'];
    const places = { [settingsTable.hosts.env]: hosts };
    const cpu = await runRanks(2, script, { args, env: { ...places, WEFTLINE_TEST_DEVICE: 'cpu' }, timeoutMs });
    const cuda = await runRanks(2, script, { args, env: { ...env, ...places }, timeoutMs });
    assert.equal(cuda.exitCode, 0, cuda.transcript);
    assert.deepEqual(cuda.ranks.map(resultOf), cpu.ranks.map(resultOf));
    const link = hosts === '1' ? 'dispatch host' : 'dispatch network';
    assert.ok(link in (resultOf(cuda.ranks[0]) as Record<string, number>));
  }
});

test('rows of EpLowLatency that were dropped', { skip: noGpu }, async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, script, { env, timeoutMs });
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.deepEqual(resultOf(rank), { drop: 1 });
});
