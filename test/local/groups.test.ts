// Groups of ranks on one host and on several that are pretended: what they see, that they do not disturb each other, and who fails.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks, type RunRanksOptions, type RunRanksResult } from './support/run-ranks.ts';

const script = new URL('./support/group-rank.js', import.meta.url);

interface Failed {
  readonly code: string;
  readonly message: string;
  readonly rank?: number;
}

function run(scenario: string, ranks: number, options: RunRanksOptions = {}): Promise<RunRanksResult> {
  return runRanks(ranks, script, { ...options, args: [scenario] });
}

interface All {
  readonly facts: unknown;
  readonly ranks: readonly (readonly number[] | null)[];
  readonly all: readonly (readonly number[] | null)[];
  readonly refused: Failed;
  readonly twice: Failed;
  readonly badKey: Failed;
  readonly order: Failed;
  readonly used: readonly number[];
  readonly uneven: Failed;
}

test('split() and group() give groups that work at the same time, over two pretended hosts', async () => {
  const { exitCode, ranks, transcript } = await run('all', 4, { env: { WEFTLINE_HOSTS: '2' } });
  const results = ranks.map((rank) => resultOf(rank) as All);
  assert.equal(exitCode, 0, transcript);
  for (const [rank, result] of results.entries()) {
    const [hostIndex, scaleUpIndex] = [rank >> 1, rank & 1];
    const host = [2 * hostIndex, 2 * hostIndex + 1];
    assert.deepEqual(result.facts, {
      hosts: [
        [0, 1],
        [2, 3],
      ],
      hostIndex,
      scaleUpIndex,
      localRanks: host,
      nodeCount: 2,
      machineRank: rank,
    });
    const none = rank === 0 ? null : [3, 2, 1];
    const outer = rank % 3 === 0 ? [3, 0] : null;
    assert.deepEqual(result.ranks, [host, none, [rank], outer, [rank]]);
    assert.deepEqual(result.all, [[0, 1, 2, 3], host, none, outer]);
    assert.equal(result.refused.code, 'WL_INVALID_ARGUMENT');
    assert.match(
      result.refused.message,
      new RegExp(`expected ranks from 0 to 3, each once, this one \\(${rank}\\) among`),
    );
    assert.equal(result.twice.code, 'WL_INVALID_ARGUMENT');
    // Only rank 2 passed it, and no rank was left waiting.
    assert.deepEqual([result.badKey.code, result.badKey.rank], ['WL_INVALID_ARGUMENT', 2]);
    assert.equal(result.order.code, 'WL_CONFIG_MISMATCH');
    assert.match(result.order.message, /\[1, 0, 2, 3\] on rank 1/);
    // bf16: two ranks sent one each. Alone: the one rank sent once. Across both hosts all send to the first and last rank.
    const wide = rank === 0 || rank === 3 ? 24 : 0;
    assert.deepEqual(result.used, [12, 0x4000, 6, 0x3f80, wide, 0x4000]);
    const [even, odd] = host;
    assert.equal(result.uneven.code, 'WL_CONFIG_MISMATCH');
    assert.match(result.uneven.message, new RegExp(`different numExperts: 4 on rank ${even}, 8 on rank ${odd}$`));
  }
});

interface Death {
  readonly inWorld: Failed;
  readonly inGroup: Failed | readonly number[];
  readonly lost: readonly boolean[];
}

test('groups are the same on all ranks when calls overlap on one rank alone, and after one failed there', async () => {
  const { exitCode, ranks, transcript } = await run('overlapping', 3);
  assert.equal(exitCode, 0, transcript);
  for (const [rank, output] of ranks.entries()) {
    const gathered = ['s', 'g', 'a', 'l'].map((text) => [0, 1, 2].map((source) => `${text}${source}`));
    assert.deepEqual(resultOf(output), rank === 0 ? [...gathered, 'WL_TIMEOUT'] : [...gathered, null], transcript);
  }
});

test('the death of a rank ends its groups and the world, and no other group', async () => {
  const { ranks, transcript } = await run('death', 4, { graceMs: 60_000 });
  const results = ranks.map((rank) => resultOf(rank) as Death);
  for (const rank of [0, 1, 2]) {
    const { inWorld, inGroup, lost } = results[rank]!;
    assert.deepEqual([inWorld.code, inWorld.rank], ['WL_PEER_LOST', 3], transcript);
    assert.deepEqual(lost, [true, rank === 2], transcript);
    if (rank === 2) assert.match((inGroup as Failed).code, /^WL_PEER_(LOST|FAILED)$/);
    else assert.deepEqual(inGroup, [12, 0x4000], transcript);
    assert.equal(ranks[rank]?.exitCode, 4, transcript);
  }
});

test('an error of a group names world ranks', async () => {
  const { exitCode, ranks, transcript } = await run('missing', 3);
  const results = ranks.map((rank) => resultOf(rank) as Failed);
  assert.equal(exitCode, 0, transcript);
  for (const rank of [0, 2]) {
    assert.equal(results[rank]?.code, 'WL_TIMEOUT');
    assert.match(
      results[rank]?.message ?? '',
      /barrier "group 0-2 #\d+\/lonely" after 300 ms: ranks? .*1.* did not come/,
    );
  }
});

interface Errors {
  readonly capacity: Failed;
  readonly mismatch: Failed;
  readonly call: Failed;
}

test('errors of EpBuffer in a group name world ranks', async () => {
  const { exitCode, ranks, transcript } = await run('errors', 3);
  assert.equal(exitCode, 0, transcript);
  for (const [rank, output] of ranks.entries()) {
    const { capacity, mismatch, call } = resultOf(output) as Errors;
    assert.match(capacity.message, /^Rank 2 would receive 3 rows, more than its numWorstTokens 2/);
    assert.match(mismatch.message, /^The ranks disagree on weightBytes: 0 on rank 2, 4 on rank 1;/);
    // The rank that looks first reports it; the others learn that it gave up.
    if (call.code === 'WL_CONFIG_MISMATCH')
      assert.match(call.message, rank === 0 ? /but rank [12] is in/ : /but rank 0 is in/);
    else assert.match(call.message, /^Rank [012] gave up: WL_CONFIG_MISMATCH: .*rank [012] is in/);
  }
});

interface Agents {
  readonly why: readonly (string | null)[];
  readonly used: readonly string[];
}

test('agents on pretended hosts share no memory; those of one host do', async () => {
  const { exitCode, ranks, transcript } = await run('agents', 3, { env: { WEFTLINE_HOSTS: '2' } });
  const results = ranks.map((rank) => resultOf(rank) as Agents);
  assert.equal(exitCode, 0, transcript);
  const far = 'the peer is on another host';
  assert.deepEqual(results, [
    { why: [null, far], used: ['local', 'multipath'] },
    { why: [null, far], used: ['local', 'multipath'] },
    { why: [far, far], used: ['multipath', 'multipath'] },
  ]);
});

test('more hosts than ranks are refused before any rank starts', async () => {
  await assert.rejects(run('all', 3, { env: { WEFTLINE_HOSTS: '4' } }), {
    code: 'WL_CONFIG',
    message: 'Invalid setting hosts (WEFTLINE_HOSTS): expected 1 to 3, as this machine has 3 ranks, got "4"',
  });
});

test('ranks that differ in the setting hosts are told which', async () => {
  const { exitCode, ranks, transcript } = await run('differ', 2);
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) {
    const { code, message } = resultOf(rank) as Failed;
    assert.equal(code, 'WL_CONFIG_MISMATCH', transcript);
    assert.match(
      message,
      /^The ranks have different settings hosts: 2 on rank 0, 1 on rank 1; set WEFTLINE_HOSTS alike on all$/,
    );
  }
});
