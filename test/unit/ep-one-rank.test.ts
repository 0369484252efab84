import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, fromBf16, readSettings, toBf16 } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import type { World } from '#lib/world/world.js';
const world = {
  rank: 0,
  size: 1,
  localRank: 0,
  localSize: 1,
  nodeRank: 0,
  nodeCount: 1,
  jobId: 'x',
  localRanks: [0],
  settings: readSettings(),
  barrier: async () => {},
  allGather: async <T>(_n: string, v: T) => [v],
  close: async () => {},
} as unknown as World;
test('one rank', async () => {
  const device = await CpuDevice.create();
  await using buffer = await EpBuffer.create(world, device, {
    maxTokensPerRank: 8,
    hidden: 16,
    numExperts: 4,
    maxTopk: 2,
  });
  const x = await device.tensor(
    'bf16',
    [3, 16],
    Uint16Array.from({ length: 48 }, (_, i) => toBf16(i)),
  );
  const topkIdx = await device.tensor('i64', [3, 2], BigInt64Array.from([0n, 3n, -1n, -1n, 2n, -1n]));
  const r = await buffer.dispatch({ x, topkIdx });
  console.log(r.numRecvTokensPerExpert, r.recvTopkIdx?.view(), r.handle.recvSrcIdx.view());
  const c = await buffer.combine({ x: r.recvX as typeof x, handle: r.handle });
  console.log([...c.combinedX.view()].map(fromBf16));
  assert.equal(c.combinedX.shape[0], 3);
});
