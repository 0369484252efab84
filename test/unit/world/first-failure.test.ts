import assert from 'node:assert/strict';
import test from 'node:test';
import type { FailureNote } from '#lib/world/failure-log.js';
import { firstFailure, type SeenExit } from '#lib/world/first-failure.js';
import { failureSummary } from '#lib/world/launcher.js';
import type { RankResult } from '#lib/world/rank-process.js';
import fc from '../../support/fast-check.js';

const end = (rank: number, exitCode: number | null, facts: Partial<RankResult> = {}): RankResult => ({
  rank,
  pid: 100 + rank,
  exitCode,
  signal: null,
  durationMs: 1,
  endedAt: 1_000,
  stopped: false,
  ...facts,
});
const note = (rank: number, time: number, because: readonly number[] = []): FailureNote => ({ rank, time, because });

const seen = (rank: number, notes: number): SeenExit => ({ rank, notes });

test('the first failure is the one that the others blame, whatever order the processes end in', () => {
  fc.assert(
    fc.property(
      fc.record({
        ranks: fc.integer({ min: 1, max: 12 }),
        seed: fc.array(fc.nat(), { minLength: 12, maxLength: 12 }),
        ends: fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 12, maxLength: 12 }),
        silent: fc.boolean(),
      }),
      ({ ranks, seed, ends, silent }) => {
        // Rank r was brought down by one that had failed before it; the root notes nothing if a signal ended it.
        const order = Array.from({ length: ranks }, (_, rank) => rank).toSorted(
          (a, b) => (seed[a] ?? 0) - (seed[b] ?? 0),
        );
        const root = order[0] ?? 0;
        const notes = order
          .map((rank, at) => note(rank, 1_000 + at, at === 0 ? [] : [order[(seed[rank] ?? 0) % at] ?? root]))
          .slice(silent ? 1 : 0);
        const results = order.map((rank) =>
          rank === root && silent
            ? end(rank, null, { signal: 'SIGKILL', endedAt: 1_100 })
            : end(rank, rank + 1, { endedAt: 1_050 + (ends[rank] ?? 0) }),
        );
        const found = firstFailure(
          results.toSorted((a, b) => a.rank - b.rank),
          notes,
          results
            .toSorted((a, b) => (ends[a.rank] ?? 0) - (ends[b.rank] ?? 0))
            .map(({ rank }) => seen(rank, notes.length)),
        );
        assert.equal(found?.rank, root);
        assert.deepEqual([found.exitCode, found.signal], silent ? [null, 'SIGKILL'] : [root + 1, null]);
        assert.equal(found.blamesOthers, false);
      },
    ),
  );
});

test('what the launcher saw first decides, a note or an end without one, whatever the clocks say', () => {
  const killed = end(0, null, { signal: 'SIGKILL', endedAt: 5_000 });
  const exits = [end(1, 3, { endedAt: 1 }), end(2, 4, { endedAt: 2 })];
  const notes = [note(1, 9_000), note(2, 10)];
  const firstOf = (order: readonly SeenExit[]): number | undefined =>
    firstFailure([killed, ...exits], notes, order)?.rank;
  assert.equal(firstOf([seen(0, 0), seen(2, 2), seen(1, 2)]), 0);
  assert.equal(firstOf([seen(0, 1), seen(2, 2), seen(1, 2)]), 1);
  assert.equal(firstOf([seen(2, 2), seen(1, 2), seen(0, 2)]), 1);
  // Two that noted nothing.
  const other = end(3, null, { signal: 'SIGSEGV', endedAt: 1 });
  assert.equal(firstFailure([killed, other], [], [seen(0, 0), seen(3, 0)])?.rank, 0);
  assert.equal(firstFailure([killed, other], [], [seen(3, 0), seen(0, 0)])?.rank, 3);
  // Rank 0 was started again, and ended for good behind rank 3.
  assert.equal(firstFailure([killed, other], [], [seen(0, 0), seen(3, 0), seen(0, 0)])?.rank, 3);
});

test('ranks that ended well or were stopped have not failed; blame of a rank that did not fail is no excuse', () => {
  assert.equal(firstFailure([end(0, 0), end(1, null, { signal: 'SIGTERM', stopped: true })], [], []), undefined);
  const found = firstFailure([end(0, 4), end(1, null, { signal: 'SIGTERM', stopped: true })], [note(0, 900, [1])], []);
  assert.equal(found?.rank, 0);
});

test('a rank that noted an error and was stopped then is the first failure, with the exit code of an error', () => {
  const failed: FailureNote = { ...note(1, 900), error: { code: 'WL_CHECK', message: 'the sum is wrong' } };
  const ends = [end(0, 1), end(1, null, { signal: 'SIGTERM', stopped: true })];
  const found = firstFailure(ends, [failed, note(0, 950, [1])], []);
  assert.deepEqual([found?.rank, found?.exitCode, found?.signal, found?.time], [1, 1, null, 900]);
});

test('a rank that blames ranks of other nodes says so', () => {
  assert.equal(firstFailure([end(4, 1), end(5, 1)], [note(4, 1, [2]), note(5, 2, [4])], [])?.blamesOthers, true);
});

test('ranks that lost the store of another node blame its launcher, not themselves', () => {
  const lost: FailureNote = { ...note(4, 1), error: { code: 'WL_PEER_LOST', message: 'the launcher was lost' } };
  assert.equal(firstFailure([end(4, 1)], [lost], [])?.blamesOthers, true);
});

test('the summary groups ranks and has no field without a value', () => {
  const notes: FailureNote[] = [
    { ...note(3, 900), error: { code: 'WL_CHECK', message: 'the sum is wrong\nsecond line' } },
    ...[0, 1].map((rank): FailureNote => ({
      ...note(rank, 950, [3]),
      error: { code: 'WL_PEER_FAILED', message: 'x' },
    })),
  ];
  const ranks = [end(0, 1), end(1, 1), end(2, null, { signal: 'SIGTERM', stopped: true }), end(3, 7)];
  const found = firstFailure(ranks, notes, []);
  assert.ok(found !== undefined);
  assert.deepEqual(failureSummary({ ...found, host: 'here' }, ranks, notes).split('\n'), [
    'the job failed: rank 3 (process 103 on here) ended with exit code 7 at 1970-01-01T00:00:00.900Z',
    '  first error: WL_CHECK: the sum is wrong',
    '  failed after it, WL_PEER_FAILED: ranks 0, 1',
    '  stopped: rank 2',
  ]);
});

test('the summary names the rank that was late, which has not failed', () => {
  const missed: FailureNote = { ...note(1, 900, [2]), error: { code: 'WL_TIMEOUT', message: 'Rank 2 did not arrive' } };
  const ranks = [end(1, 1), end(2, null, { signal: 'SIGTERM', stopped: true })];
  const found = firstFailure(ranks, [missed], []);
  assert.ok(found !== undefined);
  assert.deepEqual(
    failureSummary({ ...found, host: 'here' }, ranks, [missed])
      .split('\n')
      .slice(1),
    ['  first error: WL_TIMEOUT: Rank 2 did not arrive', '  because of rank 2', '  stopped: rank 2'],
  );
});
