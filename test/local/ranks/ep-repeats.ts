// Dispatch and combine again and again, random sleeps on random ranks, and compare a digest of all bytes.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, type Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from './ep-case.ts';

const [tokens, hidden, topk, experts] = [48, 264, 6, 24];
await using world = await join();
const device = await CpuDevice.create();
const next = random(world.rank + 1);
const x = await device.tensor(
  'bf16',
  [tokens, hidden],
  Uint16Array.from({ length: tokens * hidden }, () => next() * 0x7f00),
);
const choices = Array.from({ length: tokens }, () => {
  const order = Array.from({ length: experts }, (_, expert) => ({ expert, score: next() }));
  return order
    .toSorted((a, b) => a.score - b.score)
    .map(({ expert }) => expert)
    .slice(0, topk);
});
const topkIdx = await device.tensor('i32', [tokens, topk], Int32Array.from(choices.flat()));
const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
await using buffer = await EpBuffer.create(world, device, config);
const layerOptions = { maxTokens: tokens, hidden, topk, numTotExperts: experts, enableLocalCombine: true };
await using layer = await EPAll2AllLayer.create(world, device, layerOptions);

async function once(): Promise<string> {
  const digest = createHash('sha256');
  const add = (tensor: Tensor) => digest.update(new Uint8Array(device.hostView('u8', tensor.address, tensor.bytes)));
  if (next() < 0.2) await sleep(next() * 8);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  add(recvX as Tensor);
  if (next() < 0.2) await sleep(next() * 8);
  const { combinedX } = await buffer.combine({ x: recvX as Tensor<'bf16'>, handle });
  add(combinedX);
  const { output, layoutDesc } = await layer.dispatch({ input: x, expIndices: topkIdx });
  add(output);
  const combined = await layer.combine({ input: output, layoutDesc });
  add(combined);
  for (const one of [handle, layoutDesc, combined, combinedX]) one.dispose();
  return digest.digest('hex');
}

const first = await once();
for (let repeat = 1; repeat < Number(process.argv[2]); repeat++) {
  assert.equal(await once(), first, `repeat ${repeat} on rank ${world.rank}`);
}
