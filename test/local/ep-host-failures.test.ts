// What ranks of a group on several hosts hear when one of them fails: why, on whichever host they are, and soon. The gate has
// each kind of failure once, the nightly run each of them with the buffer and with the layer.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { isWhole } from '../support/extent.ts';

const script = new URL('./ranks/ep-host-failure.js', import.meta.url);
/** The calls of these tests may take 60 s. */
const SOON_MS = 30_000;

interface Ended {
  readonly code: string;
  readonly message: string;
  readonly rank?: number;
  readonly ms: number;
}

interface Case {
  readonly scenario: string;
  readonly culprit: number;
  readonly hosts: string;
  /** What the others hear. */
  readonly heard: RegExp;
  /** What the culprit itself gets. */
  readonly own: RegExp;
  /** With which the gate has it. */
  readonly gate?: 'buffer' | 'layer';
}

const mismatch = /WL_CONFIG_MISMATCH|different calls|all ranks must make the same calls/;
const cases: readonly Case[] = [
  {
    scenario: 'throws in dispatch',
    culprit: 3,
    hosts: '2',
    heard: /^Rank 3 gave up: out of luck/,
    own: /^out of luck/,
  },
  {
    scenario: 'throws in dispatch',
    culprit: 3,
    hosts: '3+1',
    heard: /^Rank 3 gave up: out of luck/,
    own: /^out of luck/,
  },
  {
    scenario: 'throws in combine',
    culprit: 1,
    hosts: '3+1',
    heard: /^Rank 1 gave up: out of luck/,
    own: /^out of luck/,
    gate: 'buffer',
  },
  { scenario: 'throws between', culprit: 2, hosts: '2', heard: /\b[Rr]anks? 2\b/, own: /^out of luck/ },
  { scenario: 'throws between', culprit: 1, hosts: '3+1', heard: /\b[Rr]anks? 1\b/, own: /^out of luck/ },
  {
    scenario: 'stays away',
    culprit: 0,
    hosts: '2',
    heard: /\b[Rr]anks? 0\b/,
    own: /Rank \d gave up: WL_TIMEOUT: .*[Rr]anks? 0\b/,
    gate: 'layer',
  },
  { scenario: 'in another call', culprit: 2, hosts: '2', heard: mismatch, own: mismatch, gate: 'layer' },
  { scenario: 'in the other call on its host', culprit: 3, hosts: '3+1', heard: mismatch, own: mismatch },
  {
    scenario: 'bad argument, then gone',
    culprit: 2,
    hosts: '3+1',
    heard: /\b[Rr]anks? 2\b/,
    own: /9999/,
    gate: 'buffer',
  },
];

describe('failures across hosts', { concurrency: 2 }, () => {
  for (const what of ['buffer', 'layer']) {
    for (const { scenario, culprit, hosts, heard, own } of cases.filter(({ gate }) => isWhole || gate === what)) {
      test(`${what}, hosts ${hosts}: rank ${culprit} ${scenario}`, async () => {
        const env = { WEFTLINE_HOSTS: hosts, WEFTLINE_TEST_GROUP: 'all' };
        const options = { args: [scenario, what, String(culprit)], env, graceMs: 60_000 };
        const { exitCode, ranks, transcript } = await runRanks(4, script, options);
        assert.equal(exitCode, 0, transcript);
        for (const [rank, output] of ranks.entries()) {
          const { code, message, rank: named, ms } = resultOf(output) as Ended;
          assert.notEqual(code, 'none', transcript);
          assert.match(message, rank === culprit ? own : heard, `rank ${rank}\n${transcript}`);
          // The rank named is the one whose words they are, or that was missed: never one that gave up for want of another.
          if (heard !== mismatch) assert.ok(named === undefined || named === culprit, transcript);
          if (rank !== culprit) assert.ok(ms < SOON_MS, `rank ${rank}\n${transcript}`);
        }
      });
    }

    if (!isWhole && what === 'buffer') continue;
    test(`${what}: a choice that one rank gets wrong fails on all, and the next calls work`, async () => {
      const env = { WEFTLINE_HOSTS: '3+1', WEFTLINE_TEST_GROUP: 'all' };
      const args = ['bad argument, then a good one', what, '2'];
      const { exitCode, ranks, transcript } = await runRanks(4, script, { args, env });
      assert.equal(exitCode, 0, transcript);
      for (const output of ranks) assert.deepEqual(resultOf(output), { code: 'none' }, transcript);
      for (const [rank, { stdout }] of ranks.entries()) {
        const told = rank === 2 ? /\]: expected .* got 9999/ : /\] of rank 2: .*; the error of rank 2 shows the value/;
        assert.match(stdout.join('\n'), /Invalid \w+\[0, 0\].*: expected an expert from 0 to 3/, transcript);
        assert.match(stdout.join('\n'), told, transcript);
      }
    });
  }
});
