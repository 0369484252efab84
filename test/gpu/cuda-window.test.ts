import assert from 'node:assert/strict';
import test from 'node:test';
import { runRanks } from '../local/support/run-ranks.ts';
import { noGpu, rankCounts } from './support/gpu.ts';

const script = new URL('./processes/window-rank.js', import.meta.url);

for (const ranks of rankCounts) {
  test(`each of ${ranks} ranks writes into every part of a window`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(ranks, script);
    assert.equal(exitCode, 0, transcript);
  });
}
