// The device's memory grows before each call, on one rank after the other, so that what the network reads from moves on
// while records and sums of the last call may still be under way. Arguments: calls.
import assert from 'node:assert/strict';
import { fromBf16, type Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice, testGroup } from '../support/test-device.ts';

const calls = Number(process.argv[2]);
const [tokens, hidden, topk] = [32, 64, 2];
/** More than what memory grows by at a time. */
const GROWTH = 12 << 20;
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const ids = Int32Array.from({ length: tokens * topk }, (_, at) => ((at >> 1) + (at & 1)) % group.size);
const topkIdx = await device.tensor('i32', [tokens, topk], ids);
const config = { maxTokensPerRank: tokens, hidden, numExperts: group.size, maxTopk: topk };
await using buffer = await EpBuffer.create(group, device, config);
await using layer = await EPAll2AllLayer.create(group, device, {
  maxTokensPerRank: tokens,
  hidden,
  maxTopk: topk,
  numExperts: group.size,
});
const held: Tensor[] = [];

function grow(turn: number): void {
  if (turn % group.size === group.rank) held.push(device.empty('u8', [GROWTH]));
}

async function isTwo(sums: Tensor<'bf16'>): Promise<void> {
  assert.deepEqual([...(await sums.toHost())].map(fromBf16), Array<number>(tokens * hidden).fill(2));
  sums.close();
}

for (let call = 0; call < calls; call++) {
  grow(2 * call);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  grow(2 * call + 1);
  await isTwo((await buffer.combine({ x: recvX, handle })).combinedX);
  handle.close();
  grow(2 * call);
  const { recvX: output, handle: rows } = await layer.dispatch({ x, topkIdx });
  grow(2 * call + 1);
  await isTwo(await layer.combine({ x: output, handle: rows }));
  rows.close();
}
for (const tensor of held) tensor.close();
