// The usage example of Triton-distributed's EPAll2AllLayer, in the words of names.md, with its sizes but the number of ranks: experts are drawn
// at random, so that many tokens choose one twice. Prints how many do.
import assert from 'node:assert/strict';
import { fromBf16, toBf16 } from 'weftline';
import { EPAll2AllLayer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';

const [tokens, hidden, topk, numTotExperts] = [128, 7168, 8, 256];
await using world = await join();
await using device = await openTestDevice(world);
const next = random(world.rank + 1);
const values = Float32Array.from({ length: tokens * hidden }, () => next() * 2 - 1);
const input = await device.tensor('bf16', [tokens, hidden], Uint16Array.from(values, toBf16));
const ids = Int32Array.from({ length: tokens * topk }, () => Math.floor(next() * numTotExperts));
const expIndices = await device.tensor('i32', [tokens, topk], ids);
const weight = await device.tensor('f32', [tokens, topk], softmax(topk, tokens));
const rowOf = (token: number) => [...ids.subarray(token * topk, (token + 1) * topk)];
const repeating = Array.from({ length: tokens }, (_, token) => rowOf(token)).filter((row) => new Set(row).size < topk);

for (const enableLocalCombine of [false, true]) {
  const options = {
    maxTokens: 256,
    hidden,
    topk,
    numTotExperts,
    dtype: 'bf16',
    weightDtype: 'f32',
    numSm: 20,
  } as const;
  const layer = await EPAll2AllLayer.create(world, device, { ...options, enableLocalCombine });
  assert.deepEqual([layer.config.maxTokens, layer.config.topk, layer.config.numExperts], [256, topk, numTotExperts]);
  const { output, weights, layoutDesc } = await layer.dispatch({ input, expIndices, weight });
  assert.equal(
    output.shape[0],
    layoutDesc.numRecvTokensPerExpert.reduce((sum, rows) => sum + rows),
  );
  // In place of experts: each row times its weight.
  const received = await output.toHost();
  const factors = await weights.toHost();
  await output.fromHost(received.map((bits, at) => toBf16(fromBf16(bits) * factors[Math.floor(at / hidden)]!)));
  // The document calls it one way in the result, and another among the arguments.
  const named = enableLocalCombine ? { layoutDesc } : { epA2aLayoutDesc: layoutDesc };
  const combined = await (await layer.combine({ input: output, ...named })).toHost();
  assert.equal(combined.length, tokens * hidden);
  // The weights of a token add up to 1; products and, with local combine, sums of a rank are rounded to 8 bits.
  const worst = combined.reduce((most, bits, at) => Math.max(most, Math.abs(fromBf16(bits) - values[at]!)), 0);
  assert.ok(worst < 0.02, `off by ${worst}`);
  await layer.epBarrierAll(undefined, true);
  await layer.finalize();
}
console.log(JSON.stringify(repeating.length));

function softmax(columns: number, rows: number): Float32Array {
  const weights = Float32Array.from({ length: rows * columns }, () => Math.exp(next()));
  for (let first = 0; first < weights.length; first += columns) {
    const row = weights.subarray(first, first + columns);
    const sum = row.reduce((total, one) => total + one);
    row.set(row.map((one) => one / sum));
  }
  return weights;
}
