// The layer of Triton-distributed's example: 256 experts, top 8, on as many ranks and hosts as there are. All numbers are whole
// multiples of a quarter that bf16 holds, so that every rank knows what must come back.
import assert from 'node:assert/strict';
import { fromBf16, toBf16 } from 'weftline';
import { EPAll2AllLayer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const [tokens, hidden, topk, numExperts] = [128, 64, 8, 256];
await using world = await join();
await using device = await openTestDevice(world);
const next = random(world.rank + 1);
const values = Array.from({ length: tokens }, () => 1 + Math.floor(next() * 4));
const expertIds = Array.from({ length: tokens }, () => {
  const free = Array.from({ length: numExperts }, (_, expert) => expert);
  return Array.from({ length: topk }, () => free.splice(Math.floor(next() * free.length), 1)[0]!);
});
const routingWeights = Array.from({ length: tokens * topk }, () => (next() < 0.5 ? 0.25 : 0.5));

const layer = await EPAll2AllLayer.create(world, device, { maxTokensPerRank: 256, hidden, maxTopk: topk, numExperts });
const input = await device.tensor(
  'bf16',
  [tokens, hidden],
  Uint16Array.from(values.flatMap((value) => Array.from({ length: hidden }, () => toBf16(value)))),
);
const topkIdx = await device.tensor('i32', [tokens, topk], Int32Array.from(expertIds.flat()));
const weight = await device.tensor('f32', [tokens, topk], Float32Array.from(routingWeights));

for (let round = 0; round < 2; round++) {
  const {
    recvX: output,
    recvTopkWeights: weights,
    handle,
  } = await layer.dispatch({ x: input, topkIdx, topkWeights: weight });
  const nodes = world.topology.hosts.length;
  assert.deepEqual(handle.tokenDstScatterIdx.shape, [nodes, 256, topk]);
  assert.deepEqual(Array.from(handle.numInputTokensPerRank.view(), Number), Array(world.size).fill(tokens));
  // An expert multiplies by its weight, and those of odd number by two.
  const rows = output.view();
  let row = 0;
  for (const [local, count] of handle.numRecvTokensPerExpert.entries()) {
    const expert = world.rank * layer.config.numExpertsPerRank + local;
    for (const end = row + count; row < end; row++) {
      const factor = (1 + (expert % 2)) * weights.view()[row]!;
      const of = rows.subarray(row * hidden, (row + 1) * hidden);
      of.set(of.map((bits) => toBf16(fromBf16(bits) * factor)));
    }
  }
  assert.equal(row, handle.numRecvTokens);
  const combined = await layer.combine({ x: output, handle });
  const expected = values.map((value, token) =>
    expertIds[token]!.reduce(
      (sum, expert, k) => sum + value * (1 + (expert % 2)) * routingWeights[token * topk + k]!,
      0,
    ),
  );
  const got = Array.from(combined.view(), fromBf16);
  assert.deepEqual(
    got,
    expected.flatMap((value) => Array.from({ length: hidden }, () => value)),
  );
  handle.close();
  combined.close();
}
await layer.close();
console.log(JSON.stringify({ hosts: world.topology.hosts.length, ranks: world.size }));
