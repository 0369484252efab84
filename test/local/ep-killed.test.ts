// kill -9 of a rank of a group on several hosts, at each phase of each call: every other rank, on its host or another,
// ends with an error that names a rank, within the time of the call. WEFTLINE_TEST_EP above 1: each rank, all topologies.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { describe, test } from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { environmentOf, topologies } from './support/topologies.ts';

const script = new URL('./ranks/ep-killed.js', import.meta.url);
const isLong = Number(process.env['WEFTLINE_TEST_EP'] ?? 1) > 1;
const TIMEOUT_MS = 15_000;
/** What a busy machine may take to run processes that are ready, besides a tenth of the time. */
const GRACE_MS = 10_000;

interface Ended {
  readonly code: string;
  readonly message: string;
  readonly ms: number;
}

/** Object, call, and points of it: the kernels that begin a phase. */
const phases: readonly (readonly [what: string, call: string, points: readonly string[]])[] = [
  ['buffer', 'dispatch', ['begin', 'compactRows 1', 'scatterRows 1', 'scatterTopkWeight 1']],
  ['buffer', 'cached dispatch', ['begin', 'scatterRows 1']],
  ['buffer', 'combine', ['begin', 'gatherSum 1', 'gatherSum 2', 'gatherTopkWeight 1']],
  ['layer', 'dispatch', ['begin', 'expandedRows 1', 'scatterRows 1']],
  ['layer', 'combine', ['begin', 'gatherSum 1', 'gatherSum 2']],
];

const shapes = topologies.filter(({ name, hosts }) => (isLong ? hosts !== '1' : name === '2×2'));

describe('killed ranks', { concurrency: 2 }, () => {
  let turn = 0;
  for (const topology of shapes) {
    for (const [what, call, points] of phases) {
      for (const point of points) {
        const all = Array.from({ length: topology.ranks }, (_, rank) => rank);
        // In the gate one rank per phase, in turn: it is first or last on its host, with or without peers.
        const victims = isLong ? all : [turn % topology.ranks];
        turn += 1;
        for (const victim of victims) {
          test(`${topology.name}, ${call} of a ${what}, ${point}: rank ${victim} is killed`, async () => {
            let jobId = '';
            const { ranks, transcript } = await runRanks(topology.ranks, script, {
              args: [what, call, point, String(victim), String(TIMEOUT_MS)],
              env: environmentOf(topology),
              graceMs: 60_000,
              onLine: ({ text }) => (jobId = /^job ([\w-]+)$/.exec(text)?.[1] ?? jobId),
            });
            assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
            for (const rank of all.filter((other) => other !== victim)) {
              const { code, message, ms } = resultOf(ranks[rank]) as Ended;
              assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED', 'WL_TIMEOUT'].includes(code), transcript);
              const named = new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`);
              assert.match(message, named, transcript);
              assert.ok(ms <= TIMEOUT_MS * 1.1 + GRACE_MS, transcript);
            }
            assert.notEqual(jobId, '');
            assert.deepEqual(
              readdirSync('/dev/shm').filter((file) => file.includes(jobId)),
              [],
            );
          });
        }
      }
    }
  }
});
