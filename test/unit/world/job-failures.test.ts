// Tests which failures of a node's ranks count, and which helpers were only stopped by their launchers.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { FailureLog, FailureNote } from '#lib/world/failure-log.js';
import { JobFailures } from '#lib/world/launcher.js';
import type { RankResult } from '#lib/world/rank-process.js';

/** Ranks 0 to 3 are of this node, 2 and 3 are helpers; ranks 4 to 7 are of another node. */
const own = new Set([0, 1, 2, 3]);
const helpers = new Set([2, 3]);
const none = new Set<number>();

const end = (rank: number, exitCode: number | null, signal: string | null = null): RankResult => ({
  rank,
  pid: 100 + rank,
  exitCode,
  signal,
  durationMs: 1,
  endedAt: 1_000,
  stopped: false,
});
const note = (rank: number, because: readonly number[]): FailureNote => ({ rank, time: 1_000, because });

function failures(notes: FailureNote[], ended: readonly number[]): JobFailures {
  const log: Pick<FailureLog, 'read'> = { read: () => notes };
  const known = new JobFailures(log as FailureLog);
  for (const rank of ended) known.ended(rank);
  return known;
}

const wellEnded = [end(0, 0), end(1, 0)];

test('a helper that lost ranks of another node has failed only while it is needed', () => {
  const known = failures([note(2, [6])], [0, 1, 2, 3]);
  const ends = [...wellEnded, end(2, 1), end(3, 0)];
  assert.equal(known.among(ends, none, own)?.rank, 2);
  assert.equal(known.among(ends, helpers, own), undefined);
});

test('nor has a helper failed that lost one which lost ranks of another node', () => {
  const ends = [...wellEnded, end(2, 1), end(3, 1)];
  for (const because of [[2], [6, 2], [2, 6, 7]]) {
    for (const notes of [
      [note(2, [6]), note(3, because)],
      [note(3, because), note(2, [6])],
    ]) {
      assert.equal(failures(notes, [0, 1, 2, 3]).among(ends, helpers, own), undefined);
    }
  }
  // They blame each other alone.
  assert.equal(failures([note(2, [3]), note(3, [2])], [0, 1, 2, 3]).among(ends, helpers, own)?.rank, 2);
});

test('a helper that was stopped when it had lost ranks already has not failed either', () => {
  const stopped = { ...end(2, null, 'SIGTERM'), stopped: true };
  const known = failures([note(2, [6])], [0, 1, 2, 3]);
  assert.equal(known.among([...wellEnded, stopped, end(3, 0)], helpers, own), undefined);
});

test('a helper that failed by itself is told though another one has lost ranks before', () => {
  const ends = [...wellEnded, end(2, 1), end(3, null, 'SIGSEGV')];
  assert.equal(failures([note(2, [6])], [0, 1, 2, 3]).among(ends, helpers, own)?.rank, 3);
  assert.equal(failures([note(2, [3]), note(3, [])], [0, 1, 2, 3]).among(ends, helpers, own)?.rank, 3);
});

test('other ranks are never excused, whomever they lost', () => {
  for (const because of [[], [6], [2, 6]]) {
    const known = failures([note(0, because)], [0, 1]);
    assert.equal(known.among([end(0, 1), end(1, 0)], helpers, own)?.rank, 0);
  }
});

test('what a rank noted before it was started again counts no more', () => {
  const notes = [note(1, [6])];
  const known = failures(notes, [1]);
  known.startsAgain(1);
  assert.deepEqual(known.notes(), [{ ...notes[0], rank: -1 }]);
  notes.push(note(1, []));
  assert.equal(known.notes()[1]?.rank, 1);
});
