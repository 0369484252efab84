// DispatchCombineContext by itself, and the layer's output growing when it must.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';

test('the context allocates by capacity, grows collectively, keeps what suffices and is closed by finalize()', async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, new URL('./ranks/ep-context.js', import.meta.url));
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) {
    assert.deepEqual(
      resultOf(rank),
      {
        first: 4,
        kept: 4,
        // 1.25 times what is needed is rounded up to 1024, but no more rows can ever arrive.
        grown: 32,
        shapes: [[32, 16], [32]],
        stale: 'WL_CLOSED',
        tooMany: 'WL_INVALID_ARGUMENT',
        layerRows: 8,
        layerOutput: [1, 2, 3, 4, 1, 2, 3, 4],
        finalized: 'WL_CLOSED',
        left: 0,
      },
      transcript,
    );
  }
});
