import assert from 'node:assert/strict';
import test from 'node:test';
import type { ErrorCode } from 'weftline';
import { resultOf, runRanks, type RunRanksOptions } from './support/run-ranks.js';

interface Failure {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: { readonly missing?: readonly number[]; readonly rank?: number; readonly how?: string };
  readonly rank?: number;
  readonly ms: number;
}

const script = new URL('./support/world-rank.js', import.meta.url);

function run(scenario: string, ranks: number, options: RunRanksOptions = {}) {
  return runRanks(ranks, script, { ...options, args: [scenario, ...(options.args ?? [])] });
}

test('four ranks agree through barrier, allGather, add, compareAndSet, get and delete', async () => {
  const { exitCode, ranks, transcript } = await run('all', 4);
  assert.equal(exitCode, 0, transcript);
  interface All {
    readonly facts: { readonly jobId: string };
    readonly swapped: boolean;
    readonly leader: string;
  }
  const results = ranks.map((rank) => resultOf(rank) as All);
  const jobId = results[0]?.facts.jobId ?? '';
  assert.match(jobId, /^[a-z0-9]{1,32}$/);
  const leader = results.findIndex(({ swapped }) => swapped);
  results.forEach((result, rank) => {
    assert.deepEqual(result, {
      facts: {
        rank,
        size: 4,
        localRank: rank,
        localSize: 4,
        nodeRank: 0,
        nodeCount: 1,
        jobId,
        localRanks: [0, 1, 2, 3],
      },
      gathered: [0, 1, 2, 3].map((other) => ({ rank: other, text: 'ü' })),
      sum: 10,
      late: { from: 0 },
      swapped: rank === leader,
      leader: String(leader),
      deleted: rank === leader,
    });
  });
});

test('all ranks have the same secret, other jobs have another, and nobody can see it', async () => {
  const secrets = new Set<string>();
  for (let job = 0; job < 2; job += 1) {
    const { exitCode, ranks, transcript } = await run('secret', 2);
    assert.equal(exitCode, 0, transcript);
    for (const rank of ranks) {
      const { secret, ...seen } = resultOf(rank) as { readonly secret: string };
      assert.match(secret, /^[0-9a-f]{64}$/);
      assert.deepEqual(seen, { shown: [], named: [] }, transcript);
      secrets.add(secret);
    }
    assert.equal(secrets.size, job + 1);
  }
});

test('a wait that times out names the ranks that are missing', async () => {
  const { exitCode, ranks, transcript } = await run('missing', 4);
  assert.equal(exitCode, 0, transcript);
  for (const rank of [0, 2]) {
    const { barrier, key } = resultOf(ranks[rank]) as { readonly barrier: Failure; readonly key: Failure };
    assert.equal(barrier.code, 'WL_TIMEOUT');
    assert.ok(barrier.details.missing?.includes(1) && barrier.details.missing.includes(3), barrier.message);
    assert.match(barrier.message, /barrier "lonely" after 300 ms: ranks .*1.*3 did not come/);
    assert.equal(key.code, 'WL_TIMEOUT');
    assert.deepEqual(key.details.missing, [3]);
  }
});

test('a rank that is killed fails the waits of the others at once, naming it', async () => {
  const { exitCode, ranks, notices, transcript } = await run('killed', 4, { graceMs: 60_000 });
  assert.equal(exitCode, 137, transcript);
  assert.match(notices[0] ?? '', /^the job failed: rank 2 .* ended with signal SIGKILL/);
  for (const rank of [0, 1, 3]) {
    interface Killed {
      readonly failures: readonly Failure[];
      readonly later: Failure;
      readonly lost: unknown;
    }
    const { failures, later, lost } = resultOf(ranks[rank]) as Killed;
    for (const failure of [...failures, later]) {
      assert.equal(failure.code, 'WL_PEER_LOST', transcript);
      assert.equal(failure.rank, 2);
      assert.match(failure.message, /^Rank 2 \(process [0-9]+ on .+\) was lost/);
      assert.ok(failure.ms < 30_000, 'not only after the timeout');
    }
    assert.deepEqual(lost, { code: 'WL_PEER_LOST', rank: 2 });
    assert.equal(ranks[rank]?.exitCode, 3, 'each rank had time to report');
  }
});

test('a rank that closed its world is named by those who wait for it', async () => {
  const { exitCode, ranks, transcript } = await run('closed', 3);
  assert.equal(exitCode, 0, transcript);
  const { barrier, lost } = resultOf(ranks[2]) as { readonly barrier: Failure; readonly lost: boolean };
  assert.equal(barrier.code, 'WL_PEER_LOST');
  // Rank 0 or 2 may be gone too, once its own wait has failed.
  assert.match(barrier.message, /^Rank [01] .* closed its world; barrier "without 1" cannot go on$/);
  assert.equal(lost, false);
});

test('a rank that fails tells the others why', async () => {
  const { exitCode, ranks, transcript } = await run('failed', 3, { graceMs: 60_000 });
  assert.equal(exitCode, 1, transcript);
  for (const rank of [0, 2]) {
    const failure = resultOf(ranks[rank]) as Failure;
    assert.equal(failure.code, 'WL_PEER_FAILED', transcript);
    assert.match(failure.message, /^Rank 1 .* failed, .* WL_CHECK: the sum is wrong$/);
    assert.equal(ranks[rank]?.exitCode, 0);
  }
});

test('the store and its deadlines go on while the main thread of rank 0 is busy', async () => {
  const { exitCode, ranks, transcript } = await run('busy', 3);
  assert.equal(exitCode, 0, transcript);
  assert.equal(resultOf(ranks[0]), 'yes');
  for (const rank of [1, 2]) assert.equal((resultOf(ranks[rank]) as { readonly key: Failure }).key.code, 'WL_TIMEOUT');
});

test('a process that ends without close() is not kept alive', async () => {
  const { ranks, transcript } = await run('unclosed', 3, { graceMs: 60_000 });
  for (const rank of ranks) assert.equal(rank.exitCode, 0, transcript);
});
