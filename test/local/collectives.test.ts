// Collectives against the reference, byte by byte, on real ranks; what ranks hear when they disagree, or when one dies.
// WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases, longer runs, and 1000 repeats of the same calls.
// WEFTLINE_TEST_EXTENT=whole: groups of every size on every placement.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { before, describe } from 'node:test';
import { isWhole, sampled } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const isLong = factor > 1;
const scripts = {
  property: new URL('./ranks/collectives-property.js', import.meta.url),
  mismatch: new URL('./ranks/collectives-mismatch.js', import.meta.url),
  killed: new URL('./ranks/collectives-killed.js', import.meta.url),
  repeats: new URL('./ranks/collectives-repeats.js', import.meta.url),
  close: new URL('./ranks/collectives-close.js', import.meta.url),
  abandoned: new URL('./ranks/collectives-abandoned.js', import.meta.url),
  forbidden: new URL('./ranks/collectives-forbidden.js', import.meta.url),
  overlap: new URL('./ranks/collectives-overlap.js', import.meta.url),
  ahead: new URL('./ranks/collectives-ahead.js', import.meta.url),
};

function filesOf(transcript: string): string[] {
  const jobId = /job ([\w-]+)/.exec(transcript)?.[1] ?? 'no job';
  return readdirSync('/dev/shm').filter((name) => name.includes(jobId));
}

const everySize = [1, 2, 3, 4, 5, 6, 7, 8];
/** Placements with the sizes of groups. Each opens its own connections, which takes longer than its calls. */
const placements: readonly (readonly [hosts: string, cases: number, sizes: readonly number[]])[] = [
  ['1', 12, [1, 2, 3, 5]],
  ...(isWhole
    ? ([
        ['5+1+2', 6, everySize],
        ['2', 6, everySize],
        ['3', 6, everySize],
        ['8', 4, everySize],
      ] as const)
    : []),
  ['3+1+1', 4, [5]],
];

for (const [hosts, cases, sample] of placements) {
  const sizes = isWhole && hosts !== '3+1+1' ? everySize : sample;
  test(`random calls of groups of ${sizes.join(', ')} ranks, and of groups of groups, agree with the reference; hosts ${hosts}`, async () => {
    const seed = String(testSeed());
    const args = [String(cases * factor), seed, isLong ? '300000' : '40000', 'direct', sizes.join()];
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(Math.max(...sizes), scripts.property, {
      args,
      env,
      timeoutMs: 600_000 * factor,
    });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    assert.deepEqual(filesOf(transcript), []);
  });
}

for (const hosts of isWhole ? ['1', '2', '3+2'] : []) {
  test(`the same of ranks whose bytes move late, beside the windows of their hosts; hosts ${hosts}`, async () => {
    const seed = String(testSeed());
    const args = [String(6 * factor), seed, isLong ? '300000' : '40000', 'late'];
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(5, scripts.property, { args, env, timeoutMs: 600_000 * factor });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    assert.deepEqual(filesOf(transcript), []);
  });
}

for (const [mode, reads] of [
  ['allowed', 9],
  ['forbidden', 0],
] as const) {
  test(`large allToAll, in place on some ranks only; reads of other processes: ${mode}`, async () => {
    const { exitCode, transcript } = await runRanks(4, scripts.forbidden, { args: [mode] });
    assert.equal(exitCode, 0, transcript);
    for (let rank = 0; rank < 4; rank++) assert.match(transcript, new RegExp(`rank ${rank}: ${reads} reads`));
  });
}

for (const found of isWhole ? ['changed', 'unmapped'] : ['unmapped']) {
  test(`a large allToAll that a rank gave up, and whose input is ${found} since, ends well nowhere, and says why`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'weftline-abandoned-'));
    try {
      const { transcript, ranks } = await runRanks(2, scripts.abandoned, { args: [join(folder, 'changed'), found] });
      const ends = ranks.map((rank) => resultOf(rank) as { readonly ended: string; readonly isRight: boolean } | null);
      assert.equal(ends[0]?.ended, 'WL_TIMEOUT', transcript);
      assert.match(ends[1]?.ended ?? '', /^WL_(PEER_FAILED|TIMEOUT)$/, transcript);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}

for (const hosts of isWhole ? ['1', '2'] : ['2']) {
  test(`calls that a root made far ahead of another rank are not taken for earlier ones; hosts ${hosts}`, async () => {
    const { exitCode, transcript } = await runRanks(2, scripts.ahead, { env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const hosts of isWhole ? ['1', '2'] : ['1']) {
  test(`calls that overlap are carried out in order by a Communicator, and refused alike by others; hosts ${hosts}`, async () => {
    const { exitCode, transcript } = await runRanks(3, scripts.overlap, { env: { WEFTLINE_HOSTS: hosts } });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const hosts of isWhole ? ['1', '2', '4'] : ['2']) {
  test(`a rank that closes early still passes on what others of its host need; hosts ${hosts}`, async () => {
    const env = { WEFTLINE_HOSTS: hosts, WEFTLINE_TIMEOUT_MS: '30000' };
    const { exitCode, transcript } = await runRanks(4, scripts.close, { args: ['500'], env });
    assert.equal(exitCode, 0, transcript);
  });
}

if (isWhole) {
  test('the same where the bytes for other hosts leave only within calls', async () => {
    const env = { WEFTLINE_HOSTS: '2', WEFTLINE_TIMEOUT_MS: '30000', WEFTLINE_TRANSPORT_THREAD: '0' };
    const { exitCode, transcript } = await runRanks(4, scripts.close, { args: ['500'], env });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const [hosts, repeats] of sampled(
  [
    ['1', 50],
    ['2', 10],
  ] as const,
  1,
)) {
  const count = String(isLong ? 1000 : repeats);
  test(`${count} repeats with ranks that are late give the same bytes; hosts ${hosts}`, async () => {
    const env = { WEFTLINE_HOSTS: hosts };
    const { exitCode, transcript } = await runRanks(4, scripts.repeats, { args: [count], env, timeoutMs: 600_000 });
    assert.equal(exitCode, 0, transcript);
  });
}

for (const hosts of ['1', '2']) {
  // Each case has a Communicator of its own, whose connections between hosts take most of the time.
  const cases =
    isWhole || hosts === '1' ? [] : ['another count', 'length of a message', 'leaves', 'leaves before calls'];
  const isAsked = (name: string): boolean => cases.length === 0 || cases.includes(name);

  describe(`a rank that differs; hosts ${hosts}`, () => {
    type Told = Readonly<Record<string, readonly [first: string, next: string]>>;
    let told: readonly Told[] = [];
    const odd = 2;

    before(async () => {
      const { exitCode, ranks, transcript } = await runRanks(4, scripts.mismatch, {
        args: cases,
        env: { WEFTLINE_HOSTS: hosts },
      });
      assert.equal(exitCode, 0, transcript);
      told = ranks.map((rank) => resultOf(rank) as Told);
    });

    const differing: readonly (readonly [name: string, ...parts: RegExp[]])[] = [
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
    ];
    for (const [name, ...parts] of differing.filter(([key]) => isAsked(key))) {
      test(`${name}: every rank hears of it, with both sides`, () => {
        for (const rank of told) {
          const [first, next] = rank[name]!;
          // A rank that needs nothing of the others hears of it in its next call.
          const heard = first === 'ok' ? next : first;
          assert.match(heard, /WL_CONFIG_MISMATCH/);
          assert.match(heard, /rank 2/i);
          for (const part of parts) assert.match(heard, part);
          assert.match(next, /WL_CONFIG_MISMATCH/);
        }
      });
    }

    for (const name of ['no call', 'no message'].filter(isAsked)) {
      test(`${name}: the wait ends at its deadline and names the rank`, () => {
        for (const [rank, all] of told.entries()) {
          const [first, next] = all[name]!;
          if (rank === odd) assert.equal(first, 'ok');
          else
            assert.match(
              first,
              /WL_TIMEOUT: .*[Rr]anks? .*\b2\b.* did not arrive within 2000 ms.* may still be computing/,
            );
          assert.match(next, /WL_TIMEOUT/);
        }
      });
    }

    for (const name of ['leaves', 'leaves before calls']) {
      test(`${name}: a rank that closes its Communicator is named`, () => {
        for (const [rank, all] of told.entries()) {
          if (rank === odd) assert.equal(all[name]![0], 'ok');
          else assert.match(all[name]![0], /WL_PEER_LOST.*[Rr]ank 2 ended or left/);
        }
      });
    }
  });

  describe(`killed ranks; hosts ${hosts}`, { concurrency: 2 }, () => {
    for (const [what, victim] of [
      ['before a barrier', 3],
      ['within an allReduce', 1],
      ['before a message', 2],
    ] as const) {
      // What it was about makes no difference between hosts, and little within one.
      if (!isWhole && what !== 'within an allReduce') continue;
      test(`${what}: rank ${victim} is killed, and every other one is told`, async () => {
        const args = [what, String(victim)];
        const env = { WEFTLINE_HOSTS: hosts };
        const { ranks, transcript } = await runRanks(4, scripts.killed, { args, env, graceMs: 60_000 });
        assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
        for (const [rank, output] of ranks.entries()) {
          if (rank === victim) continue;
          const { code, message, ms } = resultOf(output) as { code: string; message: string; ms: number };
          assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
          assert.match(message, new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`), transcript);
          assert.ok(ms < 60_000, transcript);
        }
        assert.deepEqual(filesOf(transcript), []);
      });
    }
  });
}
