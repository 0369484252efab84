// DispatchCombineContext by itself, and the layer's output growing when it must.
import assert from 'node:assert/strict';
import test from 'node:test';
import { contextFindings } from './support/context-findings.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

test('the context allocates by capacity, grows collectively, keeps what suffices and is closed by finalize()', async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, new URL('./ranks/ep-context.js', import.meta.url));
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.deepEqual(resultOf(rank), contextFindings, transcript);
});
