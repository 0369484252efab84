// Sums of tensors that are mostly zero. npx weftline run -n 2 sparse-all-reduce.mjs
import assert from 'node:assert/strict';
import { CpuDevice } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';

const world = await join();
const device = await CpuDevice.create();
const reducer = await SparseAllReduce.create(world, device, { blockSize: 256 });
try {
  // Each worker has the first one of 64 blocks, and one of its own.
  const gradient = device.empty('f32', [64 * 256]);
  const values = gradient.view().fill(0);
  values.fill(1, 0, 256);
  values.fill(world.rank + 1, (10 + world.rank) * 256, (11 + world.rank) * 256);

  const { ownBlocks, sumBlocks, blocks, sentBytes } = await reducer.allReduce({ output: gradient });
  console.log(`sent ${ownBlocks} of ${blocks} blocks in ${sentBytes} bytes, the sum has ${sumBlocks}`);
  assert.deepEqual([values[0], values[10 * 256], values[11 * 256], values[12 * 256]], [2, 1, 2, 0]);
} finally {
  await reducer.close();
  await device.close();
  await world.close();
}
