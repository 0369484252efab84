// Rows grouped by expert, ready for a grouped matrix product, and the weighted sum back. npx weftline run -n 2 expert-layer.mjs
import assert from 'node:assert/strict';
import { CpuDevice, fromBf16, toBf16 } from 'weftline';
import { EPAll2AllLayer } from 'weftline/ep';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 expert-layer.mjs');
const device = await CpuDevice.create();
const [tokens, hidden, numExperts] = [3, 64, 8];
const layer = await EPAll2AllLayer.create(world, device, { maxTokensPerRank: 256, hidden, maxTopk: 2, numExperts });
try {
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(toBf16(1)));
  // Experts 0 to 3 are on rank 0, experts 4 to 7 on rank 1. A choice of 8, the number of experts, is dropped.
  const topkIdx = await device.tensor('i32', [tokens, 2], Int32Array.of(0, 7, 3, 4, 8, 1));
  const topkWeights = await device.tensor('f32', [tokens, 2], Float32Array.of(0.5, 0.25, 1, 1, 0, 0.5));

  // One row per (token, expert), ordered by expert, then source rank, then token; recvTopkWeights stand in the same order.
  const { recvX, recvTopkWeights, handle } = await layer.dispatch({ x, topkIdx, topkWeights });
  console.log(`rows per expert: ${handle.numRecvTokensPerExpert.join(', ')}`);

  // In place of experts: each row times its weight. combine() adds up the rows of a token.
  const rows = recvX.view();
  for (let at = 0; at < rows.length; at++)
    rows[at] = toBf16(fromBf16(rows[at]) * recvTopkWeights.view()[Math.floor(at / hidden)]);
  const combined = await layer.combine({ x: recvX, handle });
  const sums = Array.from({ length: tokens }, (_, token) => fromBf16(combined.view()[token * hidden]));
  console.log(`sums: ${sums.join(', ')}`);
  assert.deepEqual(sums, [0.5 + 0.25, 1 + 1, 0.5]);
} finally {
  await layer.close();
  await device.close();
  await world.close();
}
