// CUDA graphs of low-latency calls: replays with other contents give what direct calls give, and end as those do.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('./processes/low-latency-graph.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

for (const ranks of [1, 2]) {
  test(`60 replays on ${ranks} ranks give the bytes of direct calls`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, script, { args: ['60'], env, timeoutMs: 300_000 });
    assert.equal(exitCode, 0, transcript);
  });
}

test('a graph may be launched while a hook is pending, and send what a hook receives', { skip: noGpu }, async () => {
  const { exitCode, transcript } = await runRanks(2, script, { args: ['hooks'], env, timeoutMs: 300_000 });
  assert.equal(exitCode, 0, transcript);
});

test('a replay without one of the ranks ends at its deadline, and names it', { skip: noGpu }, async () => {
  const { ranks, transcript } = await runRanks(2, script, { args: ['absent'], env, graceMs: 10_000 });
  const { code, message } = resultOf(ranks[0]) as { readonly code: string; readonly message: string };
  assert.equal(code, 'WL_TIMEOUT', transcript);
  assert.match(message, /Kernel lowLatencyDispatch of rank 0 waited 400 ms for rank 1/, transcript);
});
