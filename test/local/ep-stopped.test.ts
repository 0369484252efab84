// A rank whose process is stopped at some stage of a call: the others end in the time of one call, and name that rank.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';

const script = new URL('./ranks/ep-stopped.js', import.meta.url);
const RANKS = 3;
const TIMEOUT_MS = 5_000;
/** What a busy machine may take to run processes that are ready, besides a tenth of the time. Two times the time is too late. */
const GRACE_MS = 4_000;

interface Ended {
  readonly code: string;
  readonly message: string;
  readonly rank?: number;
  readonly ms: number;
}

const stages = [
  'barrier of the world',
  'buffer creation',
  'opening of dispatch',
  'closing of dispatch',
  'closing of combine',
  'layer creation',
  'growth, first step',
  'growth, last step',
  'closing of layer dispatch',
];

describe('stopped ranks', { concurrency: 3 }, () => {
  // Rank 0 also holds the store.
  for (const [stage, stopped] of stages.flatMap((name) => [[name, 0] as const, [name, 1] as const])) {
    test(`${stage}: rank ${stopped} is stopped`, async () => {
      let pid = 0;
      let ended = 0;
      const { ranks, transcript } = await runRanks(RANKS, script, {
        args: [stage, String(stopped), String(TIMEOUT_MS)],
        graceMs: 60_000,
        onLine: ({ text }) => {
          pid = Number(/^stopping (\d+)$/.exec(text)?.[1] ?? pid);
          if (text.startsWith('{')) ended += 1;
          if (ended === RANKS - 1) process.kill(pid, 'SIGKILL');
        },
      });
      for (const rank of [0, 1, 2].filter((other) => other !== stopped)) {
        const { code, message, ms } = resultOf(ranks[rank]) as Ended;
        assert.ok(['WL_TIMEOUT', 'WL_PEER_FAILED'].includes(code), transcript);
        assert.match(message, new RegExp(`[Rr]anks? ([0-9], )*${stopped}\\b`), transcript);
        assert.ok(ms <= TIMEOUT_MS * 1.1 + GRACE_MS, transcript);
      }
    });
  }
});
