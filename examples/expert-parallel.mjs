// Tokens travel to the ranks of their experts and back. Start it once per rank: npx weftline run -n 2 expert-parallel.mjs
import assert from 'node:assert/strict';
import { CpuDevice, fromBf16, toBf16 } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 expert-parallel.mjs');
const device = await CpuDevice.create();
const [tokens, hidden] = [3, 64];
const buffer = await EpBuffer.create(world, device, { maxTokensPerRank: 128, hidden, numExperts: 8, maxTopk: 2 });
try {
  const x = await device.tensor(
    'bf16',
    [tokens, hidden],
    new Uint16Array(tokens * hidden).fill(toBf16(1 + world.rank)),
  );
  // Two choices per token. Experts 0 to 3 are on rank 0, experts 4 to 7 on rank 1, and -1 is no expert.
  const topkIdx = await device.tensor('i32', [tokens, 2], Int32Array.of(0, 4, 1, 2, 7, -1));

  // One row per token that chose an expert of this rank, ordered by source rank, then by token.
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });

  // In place of experts: rank r multiplies by r + 1, and writes to where combine() reads.
  const y = buffer.combineInput(handle);
  y.view().set(recvX.view().map((bits) => toBf16(fromBf16(bits) * (world.rank + 1))));

  // The sum over the ranks that held a token, back at the token's own rank.
  const { combinedX } = await buffer.combine({ x: y, handle });
  const sums = Array.from({ length: tokens }, (_, token) => fromBf16(combinedX.view()[token * hidden]));
  console.log(`received ${handle.numRecvTokens} rows, got back ${sums.join(', ')}`);
  assert.deepEqual(
    sums,
    [1 + 2, 1, 2].map((factor) => factor * (1 + world.rank)),
  );
} finally {
  await buffer.close();
  await device.close();
  await world.close();
}
