// The same low-latency calls again and again with random sleeps on random ranks, and a digest of all bytes: argv = repeats.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Tensor } from 'weftline';
import { EpLowLatency, type LowLatencyConfig } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const repeats = Number(process.argv[2]);
const [tokens, hidden, topk, experts] = [150, 1288, 6, 24];
await using world = await join();
await using device = await openTestDevice(world);
const next = random(world.rank + 1);
const values = Uint16Array.from({ length: tokens * hidden }, () => next() * 0x7f00);
const x = await device.tensor('bf16', [tokens, hidden], values);
const choices = Array.from({ length: tokens }, () => {
  const free = Array.from({ length: experts }, (_, expert) => expert);
  return Array.from({ length: topk }, () => free.splice(Math.floor(next() * free.length), 1)[0]!);
});
const topkIdx = await device.tensor('i32', [tokens, topk], Int32Array.from(choices.flat()));
const topkWeights = await device.tensor('f32', [tokens, topk], Float32Array.from({ length: tokens * topk }, next));
const sizes = { maxTokensPerRank: tokens, hidden, numExperts: experts - (experts % world.size), maxTopk: topk };
const configs: Readonly<Record<string, LowLatencyConfig>> = {
  'rank-sums': sizes,
  choices: { ...sizes, combineTravels: 'choices' },
  'rank-major': { ...sizes, layout: 'rank-major' },
};

/** Rows of all calls of one object, behind those that came undefined bytes. */
async function once(ll: EpLowLatency, mode: string): Promise<string> {
  const digest = createHash('sha256');
  const add = async (tensor: Tensor) => digest.update(await tensor.toHost());
  if (next() < 0.2) await sleep(next() * 8);
  const weights = mode === 'choices' ? {} : { topkWeights };
  const { recvX, recvCount, handle } = await ll.dispatch({
    x,
    topkIdx,
    ...weights,
    dtype: 'bf16',
    returnRecvHook: false,
  });
  await add(recvCount);
  await add(handle.recvSrcIdx);
  if (next() < 0.2) await sleep(next() * 8);
  const y = mode === 'choices' ? { topkWeights } : {};
  const { combinedX } = await ll.combine({ y: recvX as Tensor<'bf16'>, handle, ...y, returnRecvHook: false });
  await add(combinedX);
  combinedX.dispose();
  return digest.digest('hex');
}

for (const [mode, config] of Object.entries(configs)) {
  // Rank-major rows lie in the window, where combine does not take them from.
  const isInWindow = mode === 'rank-major';
  await using ll = await EpLowLatency.create(world, device, config);
  if (isInWindow) continue;
  const first = await once(ll, mode);
  for (let repeat = 1; repeat < repeats; repeat++) {
    assert.equal(await once(ll, mode), first, `${mode}, repeat ${repeat} on rank ${world.rank}`);
  }
  await ll.barrier();
}
