// A step that ranks take together tells what failed on this rank, also where the others do not come in time to hear it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { shareOutcome } from '#lib/world/outcomes.js';
import type { RankGroup } from '#lib/world/rank-group.js';

/** A group whose other ranks do not come. */
function alone(code: 'WL_TIMEOUT' | 'WL_PEER_LOST'): RankGroup {
  const group: Pick<RankGroup, 'worldRank' | 'allGather'> = {
    worldRank: 1,
    allGather: (name) => Promise.reject(new WeftlineError(code, `${name}: rank 2 did not come`)),
  };
  return group as RankGroup;
}

const late = new WeftlineError('WL_TIMEOUT', 'Agent of rank 2 did not answer');
const step = {
  name: 'links',
  facts: 0,
  work: (): void => {
    throw late;
  },
};

test('what took all the time of this rank is its error, not that the others did not come', async () => {
  await assert.rejects(shareOutcome(alone('WL_TIMEOUT'), step, {}), late);
});

test('a rank that is lost says more than what failed here', async () => {
  await assert.rejects(shareOutcome(alone('WL_PEER_LOST'), step, {}), { code: 'WL_PEER_LOST' });
  const done = { ...step, work: (): void => {} };
  await assert.rejects(shareOutcome(alone('WL_TIMEOUT'), done, {}), { code: 'WL_TIMEOUT', message: /^links: rank 2/ });
});
