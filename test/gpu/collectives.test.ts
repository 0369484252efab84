// Communicator on GPUs against its reference, by the programs that check it on CPUs; graphs, and what ranks hear when they
// disagree or when one dies. WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases.
import assert from 'node:assert/strict';
import test, { before, describe } from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const property = new URL('../local/ranks/collectives-property.js', import.meta.url);
const repeating = new URL('../local/ranks/collectives-repeats.js', import.meta.url);
const mismatch = new URL('../local/ranks/collectives-mismatch.js', import.meta.url);
const ordering = new URL('./processes/collectives-order.js', import.meta.url);
const killed = new URL('./processes/collectives-killed.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const timeoutMs = 120_000 * factor;

for (const [ranks, cases, longest] of [
  [2, 24, 300_000],
  [4, 8, 60_000],
  [8, 3, 20_000],
] as const) {
  test(
    `random calls of groups of 1 to ${ranks} ranks, which may share GPUs, agree with the reference`,
    { skip: noGpu },
    async () => {
      const args = [String(cases * factor), seed, String(longest)];
      const { exitCode, transcript } = await runRanks(ranks, property, { args, env, timeoutMs });
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    },
  );
}

for (const ranks of [2, 4]) {
  test(`the same of ${ranks} ranks whose copy engines move what they can`, { skip: noGpu }, async () => {
    const args = [String(12 * factor), seed, '60000', 'engines'];
    const { exitCode, transcript } = await runRanks(ranks, property, { args, env, timeoutMs });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

test('the same recorded in graphs', { skip: noGpu }, async () => {
  const args = [String(16 * factor), seed, '60000', 'graph'];
  const { exitCode, transcript } = await runRanks(2, property, { args, env, timeoutMs });
  assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
});

for (const ranks of rankCounts) {
  test(`repeats of ${ranks} ranks that are late give the same bytes`, { skip: noGpu }, async () => {
    const args = [String(ranks <= 2 ? 1000 : 100)];
    const { exitCode, transcript } = await runRanks(ranks, repeating, { args, env, timeoutMs });
    assert.equal(exitCode, 0, transcript);
  });
}

test(
  'calls on other streams, in graphs, after a late peer and before close() keep to themselves',
  { skip: noGpu },
  async () => {
    const { exitCode, transcript } = await runRanks(2, ordering, { env, timeoutMs: 120_000 });
    assert.equal(exitCode, 0, transcript);
  },
);

describe('a rank that differs', { skip: noGpu }, () => {
  type Told = Readonly<Record<string, readonly [first: string, next: string]>>;
  let told: readonly Told[] = [];

  before(async () => {
    const { exitCode, ranks, transcript } = await runRanks(4, mismatch, { env, timeoutMs: 120_000 });
    assert.equal(exitCode, 0, transcript);
    told = ranks.map((rank) => resultOf(rank) as Told);
  });

  for (const [name, ...parts] of [
    ['another operation', /allReduce \(sum\) of 4 f32/, /allGather of 4 f32/],
    ['another count', /allReduce \(sum\) of 4 f32/, /allReduce \(sum\) of 5 f32/],
    ['another length of pieces', /reduceScatter \(sum\) of 1 f32/, /reduceScatter \(sum\) of 1000000 f32/],
    ['another dtype', /allToAll of 2 f32/, /allToAll of 2 i32/],
    ['another reduction', /reduce \(sum\) of 4 f32 with root 0/, /reduce \(max\) of 4 f32 with root 0/],
    ['another root', /broadcast of 4 f32 with root 0/, /broadcast of 4 f32 with root 2/],
    ['barrier for broadcast', /barrier/, /broadcast of 4 f32 with root 0/],
    ['counts of allToAllv', /rank 2 sends 3 f32 to rank 0, which expects 1/],
    ['length of a message', /Rank 2 sends 5 f32 to rank 0, whose recv expects 6 f32/],
    ['dtype of a message', /Rank 2 sends 5 i32 to rank 0, whose recv expects 5 f32/],
  ] as const) {
    test(`${name}: every rank hears of it, with both sides`, () => {
      for (const rank of told) {
        const [first, next] = rank[name]!;
        // A rank that needs nothing of the others hears of it in its next call.
        const heard = first === 'ok' ? next : first;
        assert.match(heard, /WL_CONFIG_MISMATCH/);
        for (const part of parts) assert.match(heard, part);
        assert.match(next, /WL_CONFIG_MISMATCH/);
      }
    });
  }

  for (const name of ['no call', 'no message']) {
    test(`${name}: the wait ends at its deadline and names the rank`, () => {
      for (const [rank, all] of told.entries()) {
        const [first, next] = all[name]!;
        if (rank === 2) assert.equal(first, 'ok');
        else assert.match(first, /WL_TIMEOUT: Rank \d did not arrive within (?:2000|1999)/);
        assert.match(next, /WL_TIMEOUT/);
      }
      if (name === 'no call') assert.match(told[0]![name]![0], /Rank 2 did not arrive/);
    });
  }
});

test('kill -9 of a rank ends the waits of the others, which name it', { skip: noGpu }, async () => {
  const { ranks, transcript } = await runRanks(3, killed, { env, graceMs: 10_000 });
  assert.equal(ranks[1]?.signal, 'SIGKILL', transcript);
  for (const rank of [0, 2]) {
    const { code, message } = resultOf(ranks[rank]) as { readonly code: string; readonly message: string };
    assert.equal(code, 'WL_PEER_LOST', transcript);
    assert.match(message, /[Rr]ank 1\b/, transcript);
  }
});
