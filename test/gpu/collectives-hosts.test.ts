// Communicator on GPUs of several hosts, which this machine pretends, against its reference by the programs that check it on
// CPUs; what ranks hear when they disagree, and when one is killed. WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases.
import assert from 'node:assert/strict';
import test, { before, describe } from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const property = new URL('../local/ranks/collectives-property.js', import.meta.url);
const repeating = new URL('../local/ranks/collectives-repeats.js', import.meta.url);
const mismatch = new URL('../local/ranks/collectives-mismatch.js', import.meta.url);
const between = new URL('./processes/collectives-hosts.js', import.meta.url);
const killed = new URL('./processes/collectives-hosts-killed.js', import.meta.url);
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const timeoutMs = 120_000 * factor;

for (const [hosts, ranks, cases, longest] of [
  ['2', 2, 24, 300_000],
  ['2', 4, 8, 60_000],
  ['1+2', 3, 8, 60_000],
  ['3', 3, 8, 60_000],
] as const) {
  test(
    `random calls of groups of 1 to ${ranks} ranks agree with the reference; hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const args = [String(cases * factor), seed, String(longest)];
      const of = { args, env: { ...env, WEFTLINE_HOSTS: hosts }, timeoutMs };
      const { exitCode, transcript } = await runRanks(ranks, property, of);
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    },
  );
}

for (const [hosts, ranks] of [
  ['2', 2],
  ['2', 4],
] as const) {
  test(
    `calls between other work, refused recordings, many pieces, messages before close(); ${ranks} ranks, hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const of = { env: { ...env, WEFTLINE_HOSTS: hosts }, timeoutMs };
      const { exitCode, transcript } = await runRanks(ranks, between, of);
      assert.equal(exitCode, 0, transcript);
    },
  );
}

test('repeats of ranks that are late give the same bytes', { skip: noGpu }, async () => {
  const of = { args: [String(20 * factor)], env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs };
  const { exitCode, transcript } = await runRanks(4, repeating, of);
  assert.equal(exitCode, 0, transcript);
});

describe('a rank that differs', { skip: noGpu }, () => {
  type Told = Readonly<Record<string, readonly [first: string, next: string]>>;
  let told: readonly Told[] = [];

  before(async () => {
    const of = { env: { ...env, WEFTLINE_HOSTS: '2' }, timeoutMs: 120_000 };
    const { exitCode, ranks, transcript } = await runRanks(4, mismatch, of);
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
        else assert.match(first, /WL_TIMEOUT: .*[Rr]anks? .*\b2\b.* did not arrive within 2000 ms/);
        assert.match(next, /WL_TIMEOUT/);
      }
    });
  }

  test('a rank that closes its Communicator is named', () => {
    for (const [rank, all] of told.entries()) {
      if (rank === 2) assert.equal(all['leaves']![0], 'ok');
      else assert.match(all['leaves']![0], /WL_PEER_LOST.*[Rr]ank 2 ended or left/);
    }
  });
});

for (const [phase, victim] of [
  ['before a barrier', 3],
  ['while it copies for an allReduce', 1],
  ['while it adds up', 2],
  ['between two pieces of an allToAll', 0],
  ['within a broadcast of its own', 3],
  ['within a message', 2],
] as const) {
  test(`rank ${victim} is killed ${phase}, and every other one is told`, { skip: noGpu }, async () => {
    const of = { args: [phase, String(victim)], env: { ...env, WEFTLINE_HOSTS: '2' }, graceMs: 10_000 };
    const { ranks, transcript } = await runRanks(4, killed, of);
    assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
    for (const [rank, output] of ranks.entries()) {
      if (rank === victim) continue;
      const { code, message, ms } = resultOf(output) as { code: string; message: string; ms: number };
      assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
      assert.match(message, new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`), transcript);
      assert.ok(ms < 20_000, transcript);
    }
  });
}
