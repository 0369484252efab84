// Dispatch and combine again and again, random sleeps on random ranks, and compare a digest of all bytes: argv =
// repeats, what ("buffer", or by default both objects).
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { testGroup, openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const [repeats, what] = process.argv.slice(2);
const [tokens, hidden, topk, experts] = [48, 264, 6, 24];
await using world = await join();
const group = await testGroup(world);
await using device = await openTestDevice(group);
const next = random(group.rank + 1);
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
await using buffer = await EpBuffer.create(group, device, config);
const layerOptions = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts, enableLocalCombine: true };
await using layer = what === 'buffer' ? undefined : await EPAll2AllLayer.create(group, device, layerOptions);

async function once(): Promise<string> {
  const digest = createHash('sha256');
  const add = async (tensor: Tensor) => digest.update(await tensor.toHost());
  if (next() < 0.2) await sleep(next() * 8);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  await add(recvX);
  if (next() < 0.2) await sleep(next() * 8);
  const { combinedX } = await buffer.combine({ x: recvX, handle });
  await add(combinedX);
  handle.close();
  combinedX.close();
  if (layer) {
    const { recvX: output, handle: rows } = await layer.dispatch({ x, topkIdx });
    await add(output);
    const combined = await layer.combine({ x: output, handle: rows });
    await add(combined);
    rows.close();
    combined.close();
  }
  return digest.digest('hex');
}

const first = await once();
for (let repeat = 1; repeat < Number(repeats); repeat++) {
  assert.equal(await once(), first, `repeat ${repeat} on rank ${world.rank}`);
}
