// EpBuffer, EPAll2AllLayer and EpLowLatency outlive their ranks: those that live make them anew, in one call, and the launcher lets them.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { seededRandom } from '#lib/core/seeded-random.js';
import { isWhole, sampled } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';

const script = new URL('./ranks/ep-shrink.js', import.meta.url);
const RANKS = 4;
const runs = isWhole ? 12 : 1;

interface Outcome {
  readonly ranks: readonly number[];
  readonly codes: readonly string[];
  readonly ms: number;
}

interface Case {
  readonly name: string;
  readonly scenario: string;
  readonly victims: readonly number[];
  readonly hosts: string;
  /** With which the gate has it. */
  readonly gate?: 'buffer' | 'layer' | 'low-latency';
}

const cases: readonly Case[] = [
  { name: 'a rank is killed', scenario: 'dispatch', victims: [1], hosts: '1', gate: 'layer' },
  { name: 'the first rank is killed', scenario: 'dispatch', victims: [0], hosts: '1' },
  { name: 'a rank of two hosts is killed', scenario: 'dispatch', victims: [2], hosts: '2', gate: 'buffer' },
  { name: 'two ranks are killed at once', scenario: 'dispatch', victims: [1, 2], hosts: '1' },
  { name: 'a rank of each host is killed at once', scenario: 'dispatch', victims: [0, 3], hosts: '2', gate: 'layer' },
  { name: 'a whole host is killed', scenario: 'dispatch', victims: [2, 3], hosts: '2', gate: 'buffer' },
  { name: 'the first host is killed', scenario: 'dispatch', victims: [0, 1], hosts: '2', gate: 'low-latency' },
  { name: 'a host of one rank is killed', scenario: 'dispatch', victims: [3], hosts: '3+1', gate: 'low-latency' },
  { name: 'all but one are killed', scenario: 'one after the other', victims: [3, 0, 2], hosts: '1', gate: 'buffer' },
  { name: 'ranks are killed in turn', scenario: 'one after the other', victims: [1, 2], hosts: '2', gate: 'layer' },
  { name: 'a rank dies during the agreement', scenario: 'agreement', victims: [2, 3], hosts: '1', gate: 'buffer' },
  { name: 'a rank of two hosts dies in the agreement', scenario: 'agreement', victims: [0, 3], hosts: '2' },
  { name: 'a rank dies during the creation', scenario: 'creation', victims: [2, 3], hosts: '1', gate: 'layer' },
  {
    name: 'a rank of two hosts dies in the creation',
    scenario: 'creation',
    victims: [1, 2],
    hosts: '2',
    gate: 'buffer',
  },
  { name: 'the experts do not fit', scenario: 'experts', victims: [2], hosts: '1', gate: 'buffer' },
  { name: 'the experts of a layer do not fit', scenario: 'experts', victims: [0], hosts: '1', gate: 'layer' },
];

describe('ranks that are left', { concurrency: 2 }, () => {
  for (const what of ['buffer', 'layer', 'low-latency']) {
    for (const { name, scenario, victims, hosts } of cases.filter(({ gate }) => isWhole || gate === what)) {
      test(`${what}: ${name}`, async () => {
        const left = [0, 1, 2, 3].filter((rank) => !victims.includes(rank));
        const { exitCode, ranks, notices, transcript } = await runRanks(RANKS, script, {
          args: [what, scenario, victims.join()],
          env: { WEFTLINE_HOSTS: hosts, WEFTLINE_TEST_GROUP: 'all' },
          minRanks: left.length,
        });
        assert.equal(exitCode, 0, transcript);
        for (const rank of left) {
          const { ranks: members, codes } = resultOf(ranks[rank]) as Outcome;
          assert.deepEqual(members, left, transcript);
          for (const code of codes) assert.match(code, /^WL_PEER_(LOST|FAILED)$/, transcript);
        }
        const told = notices.map((notice) => /^rank (\d) ended with signal SIGKILL; the job goes on/.exec(notice)?.[1]);
        assert.deepEqual(new Set(told), new Set(victims.map(String)), transcript);
      });
    }
  }

  const seed = testSeed();
  for (let run = 0; run < runs; run += 1) {
    for (const [what, hosts] of [
      ['buffer', ['2', '1', '3'][run % 3]!],
      ['layer', ['1', '3', '2'][run % 3]!],
    ] as const) {
      test(`${what}, ${hosts} hosts, run ${run}: three of six ranks die at random events`, async () => {
        const next = seededRandom(seed + run);
        const left = [0, 1, 2, 3, 4, 5];
        const victims = [6, 5, 4].map((count) => left.splice(Math.floor(next() * count), 1)[0]!);
        const { exitCode, ranks, transcript } = await runRanks(6, script, {
          args: [what, 'random', victims.join(), String(seed + run)],
          env: { WEFTLINE_HOSTS: hosts, WEFTLINE_TEST_GROUP: 'all' },
          minRanks: left.length,
        });
        assert.equal(exitCode, 0, transcript);
        for (const rank of left) assert.deepEqual((resultOf(ranks[rank]) as Outcome).ranks, left, transcript);
        for (const rank of victims) assert.equal(ranks[rank]?.signal, 'SIGKILL', transcript);
      });
    }
  }

  for (const [what, stopped, hosts] of sampled(
    [
      ['buffer', [0], '1'],
      // These are as many as are left.
      ['layer', [2, 3], '2'],
      ['buffer', [2], '2'],
      ['layer', [1], '1'],
    ] as const,
    2,
  )) {
    test(`${what}, ${hosts} hosts: ${stopped.join()} are stopped, and come when the others have gone on`, async () => {
      const left = [0, 1, 2, 3].filter((rank) => !(stopped as readonly number[]).includes(rank));
      let goneOn = 0;
      const pids: number[] = [];
      const { exitCode, ranks, transcript } = await runRanks(RANKS, script, {
        args: [what, 'stopped', stopped.join()],
        env: { WEFTLINE_HOSTS: hosts, WEFTLINE_TEST_GROUP: 'all' },
        onLine: ({ text }) => {
          const [, pid] = /^stopping (\d+)$/.exec(text) ?? [];
          if (pid !== undefined) pids.push(Number(pid));
          if (text === 'without them') goneOn += 1;
          if (text === 'without them' && goneOn === left.length) for (const one of pids) process.kill(one, 'SIGCONT');
        },
      });
      assert.equal(exitCode, 0, transcript);
      for (const rank of left) assert.deepEqual((resultOf(ranks[rank]) as Outcome).ranks, left, transcript);
      for (const rank of stopped) {
        const { codes } = resultOf(ranks[rank]) as Outcome;
        assert.equal(codes.at(-1), 'WL_INACTIVE', transcript);
        const why = `Rank ${rank} was left out of its group, because it did not come within the 2000 ms of ranks ${left.join(', ')}`;
        assert.ok(
          ranks[rank]?.stdout.some((line) => line.startsWith(why)),
          transcript,
        );
      }
    });
  }
});
