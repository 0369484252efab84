// CUDA graphs of EpBuffer and EPAll2AllLayer: replays with other contents give what direct calls give, and end as those do.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks, type RunRanksResult } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { cudaDeviceCount } from 'weftline';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('./processes/ep-graph.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
const timeoutMs = 300_000;
const seed = String(testSeed());

/** Ranks that share a GPU wait for each other's slices of its time, so that each replay takes tens of times as long. */
const manyReplays = cudaDeviceCount() < 2 ? 50 : 1000;

for (const [ranks, shapes, replays] of [
  [2, 1, manyReplays],
  [2, 4, 25],
  [1, 2, 20],
] as const) {
  const name = `${replays} replays of each of ${shapes} shapes on ${ranks} ranks give what direct calls give`;
  test(name, { skip: noGpu }, async (context) => {
    context.diagnostic(`WEFTLINE_TEST_SEED=${seed}`);
    const args = ['compare', String(shapes), String(replays), seed];
    const { exitCode, transcript } = await runRanks(ranks, script, { args, env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

test('what cannot be recorded or launched is refused by name, and calls go on', { skip: noGpu }, async () => {
  const { exitCode, transcript } = await runRanks(2, script, { args: ['refusals'], env, timeoutMs });
  assert.equal(exitCode, 0, transcript);
});

interface Ending {
  readonly code: string;
  readonly message: string;
}

/** What a rank printed last; one that printed nothing fails the test with what all of them said. */
function endingOf({ ranks, transcript }: RunRanksResult, rank: number): Ending {
  const ending = resultOf(ranks[rank]) as Ending | null;
  assert.ok(ending !== null, `rank ${rank} printed no result:\n${transcript}`);
  return ending;
}

test('a replay without one of the ranks ends at its deadline, and names it', { skip: noGpu }, async () => {
  const ran = await runRanks(2, script, { args: ['absent'], env, graceMs: 10_000 });
  const { code, message } = endingOf(ran, 0);
  assert.equal(code, 'WL_TIMEOUT', ran.transcript);
  assert.match(message, /Kernel epDispatch of rank 0 waited (?:19\d\d|2000) ms for rank 1 \(dispatch/, ran.transcript);
});

test(
  'a rank that comes after the deadline fails, too, though the other has launched twice',
  { skip: noGpu },
  async () => {
    const ran = await runRanks(2, script, { args: ['late'], env });
    for (const { rank } of ran.ranks) assert.equal(endingOf(ran, rank).code, 'WL_TIMEOUT', ran.transcript);
  },
);

test('kill -9 of a rank ends a replay that waits for it, and names it', { skip: noGpu }, async () => {
  const ran = await runRanks(2, script, { args: ['killed'], env, graceMs: 10_000 });
  const { code, message } = endingOf(ran, 0);
  assert.equal(code, 'WL_PEER_LOST', ran.transcript);
  assert.match(message, /[Rr]ank 1\b/, ran.transcript);
});

for (const [scenario, message] of [
  ['bound', /Rank 0 would receive \d+ rows, more than its numWorstTokens 4/],
  ['layer bound', /Rank 0 would receive \d+ rows, more than its numWorstTokens 3/],
] as const) {
  test(`${scenario}: a replay that brings more rows fails on every rank alike`, { skip: noGpu }, async () => {
    const ran = await runRanks(2, script, { args: [scenario], env });
    for (const { rank } of ran.ranks) {
      const ending = endingOf(ran, rank);
      assert.equal(ending.code, 'WL_CAPACITY', ran.transcript);
      assert.match(ending.message, message, ran.transcript);
    }
  });
}
