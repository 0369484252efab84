// Experts that move between ranks while tokens travel: results stay right, and a move that fails changes nothing for anybody.
// WEFTLINE_TEST_EP above 1: more hosts, and deaths of each rank at more points.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { sampled } from '../support/extent.ts';

const isLong = Number(process.env['WEFTLINE_TEST_EP'] ?? 1) > 1;
const script = new URL('./ranks/ep-placement.js', import.meta.url);

interface Ended {
  readonly code: string;
  readonly message: string;
  readonly epoch: number;
  /** The code of stage(). */
  readonly staged: string;
  readonly rank?: number;
}

const deaths = isLong ? [0, 1, 2, 3].flatMap((victim) => [1, 2, 5, 7].map((point) => [victim, point])) : [[2, 3]];

describe('experts that move', () => {
  for (const hosts of isLong ? ['1', '2', '3+1', '4'] : sampled(['3+1', '1'], 1)) {
    test(`experts move between 4 ranks of hosts ${hosts} while tokens travel, and all change over at once`, async () => {
      const env = { WEFTLINE_HOSTS: hosts };
      const { exitCode, ranks, transcript } = await runRanks(4, script, { args: ['traffic'], env });
      assert.equal(exitCode, 0, transcript);
      const [first, ...others] = ranks.map(resultOf) as { readonly epoch: number; readonly moved: readonly number[] }[];
      assert.equal(first?.epoch, 2);
      assert.ok(first.moved[0]! > 0, transcript);
      for (const other of others) assert.deepEqual(other, first);
    });
  }

  test('plans that differ, ranks without one, wrong bytes and ranks that are late change nothing, and the next plan is taken', async () => {
    const { exitCode, ranks, transcript } = await runRanks(4, script, { args: ['refusals'] });
    assert.equal(exitCode, 0, transcript);
    assert.deepEqual(
      ranks.map(resultOf),
      ranks.map(() => ({ epoch: 1 })),
    );
  });

  for (const [victim = 0, point = 0] of deaths) {
    test(`rank ${victim} is killed while weights are on their way (${point}): the plan in force stays, and the error names it`, async () => {
      const args = ['killed', String(victim), String(point)];
      const { ranks, transcript } = await runRanks(4, script, { args, graceMs: 60_000 });
      assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
      for (const { rank } of ranks.filter((other) => other.rank !== victim)) {
        const { code, message, epoch, staged, rank: named } = resultOf(ranks[rank]) as Ended;
        assert.ok(['none', 'WL_PEER_LOST', 'WL_PEER_FAILED', 'WL_CLOSED'].includes(staged), transcript);
        assert.ok(named === undefined || named === victim, transcript);
        assert.equal(epoch, 0, transcript);
        assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
        assert.match(message, new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`), transcript);
      }
    });
  }

  test('rank 3 is killed when all have voted: the other ranks change over, or none of them does', async () => {
    const { ranks, transcript } = await runRanks(4, script, { args: ['killed', '3', 'vote'], graceMs: 60_000 });
    assert.equal(ranks[3]?.signal, 'SIGKILL', transcript);
    const ends = ranks.slice(0, 3).map(resultOf) as Ended[];
    for (const { epoch, code } of ends) {
      assert.equal(epoch, ends[0]!.epoch, transcript);
      assert.equal(code === 'none', epoch === 1, transcript);
    }
  });
});
