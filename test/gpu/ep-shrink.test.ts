// EpBuffer and EPAll2AllLayer on GPUs outlive their ranks: those that live make them anew, and nothing of the dead is kept.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { cacheFolder, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const script = new URL('../local/ranks/ep-shrink.js', import.meta.url);
const common = { WEFTLINE_TEST_DEVICE: 'cuda', WEFTLINE_TEST_GROUP: 'all', WEFTLINE_TIMEOUT_MS: '100000' };
const RANKS = 4;

for (const [what, scenario, victims, hosts] of [
  ['buffer', 'dispatch', [1], '1'],
  ['layer', 'one after the other', [0, 2], '1'],
  ['layer', 'creation', [2, 3], '1'],
  ['buffer', 'dispatch', [2, 3], '2'],
  ['layer', 'agreement', [0, 3], '2'],
] as const) {
  test(`${what} of GPUs on ${hosts} hosts, ${scenario}: ${victims.join()} die`, { skip: noGpu }, async () => {
    const left = [0, 1, 2, 3].filter((rank) => !(victims as readonly number[]).includes(rank));
    const { exitCode, ranks, transcript } = await runRanks(RANKS, script, {
      args: [what, scenario, victims.join()],
      env: { ...common, WEFTLINE_HOSTS: hosts, [settingsTable.cacheFolder.env]: cacheFolder },
      minRanks: left.length,
    });
    assert.equal(exitCode, 0, transcript);
    for (const rank of left) {
      const { ranks: members, codes } = resultOf(ranks[rank]) as { readonly ranks: number[]; readonly codes: string[] };
      assert.deepEqual(members, left, transcript);
      for (const code of codes) assert.match(code, /^WL_PEER_(LOST|FAILED)$/, transcript);
    }
  });
}

test('a rank of GPUs that is stopped is left out, and hears so', { skip: noGpu }, async () => {
  let goneOn = 0;
  let pid = 0;
  const { exitCode, ranks, transcript } = await runRanks(RANKS, script, {
    args: ['buffer', 'stopped', '1'],
    env: { ...common, WEFTLINE_HOSTS: '1', [settingsTable.cacheFolder.env]: cacheFolder },
    onLine: ({ text }) => {
      pid = Number(/^stopping (\d+)$/.exec(text)?.[1] ?? pid);
      if (text === 'without them') goneOn += 1;
      if (goneOn === RANKS - 1) process.kill(pid, 'SIGCONT');
    },
  });
  assert.equal(exitCode, 0, transcript);
  for (const rank of [0, 2, 3]) {
    assert.deepEqual((resultOf(ranks[rank]) as { readonly ranks: number[] }).ranks, [0, 2, 3], transcript);
  }
  assert.equal((resultOf(ranks[1]) as { readonly codes: string[] }).codes.at(-1), 'WL_INACTIVE', transcript);
});
