// A rank that gives up first, because its time is over, while the rank it waits for waits itself for one that is stopped: all
// ranks name the one that is stopped.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sampled } from '../support/extent.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

const script = new URL('./ranks/first-cause.js', import.meta.url);
const RANKS = 4;
const STOPPED = 3;

interface Ended {
  readonly code: string;
  readonly message: string;
}

describe('the first cause across hosts', { concurrency: 2 }, () => {
  for (const what of sampled(['buffer', 'sparse', 'mover', 'links', 'layer', 'communicator'], 4)) {
    test(what, async () => {
      let pid = 0;
      let ended = 0;
      const { ranks, transcript } = await runRanks(RANKS, script, {
        args: [what, String(STOPPED)],
        env: { WEFTLINE_HOSTS: '2' },
        graceMs: 60_000,
        onLine: ({ text }) => {
          pid = Number(/^stopping (\d+)$/.exec(text)?.[1] ?? pid);
          if (text.startsWith('{')) ended += 1;
          if (ended === RANKS - 1) process.kill(pid, 'SIGKILL');
        },
      });
      for (const rank of [0, 1, 2]) {
        const { code, message } = resultOf(ranks[rank]) as Ended;
        assert.ok(['WL_TIMEOUT', 'WL_PEER_FAILED'].includes(code), transcript);
        assert.match(message, new RegExp(`[Rr]anks? ([0-9], )*${STOPPED}\\b`), transcript);
      }
    });
  }
});
