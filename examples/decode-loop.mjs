// The loop of decoding: few tokens, a layer per call, step after step. npx weftline run -n 2 decode-loop.mjs
import assert from 'node:assert/strict';
import { CudaDevice, fromBf16, openDevice, toBf16 } from 'weftline';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 decode-loop.mjs');
const device = await openDevice('auto', world);
const [tokens, hidden, steps] = [4, 128, 5];
const config = { maxTokensPerRank: 16, hidden, numExperts: 4, maxTopk: 2 };
const lowLatency = await EpLowLatency.create(world, device, config);
try {
  // The same tensors in every step, with other contents.
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden));
  const topkIdx = await device.tensor('i32', [tokens, 2], Int32Array.of(0, 2, 0, 2, 0, 2, 0, 2));
  const topkWeights = await device.tensor('f32', [tokens, 2], new Float32Array(tokens * 2).fill(0.5));
  const out = device.empty('bf16', [tokens, hidden]);
  const layer = async () => {
    const { recvX, handle } = await lowLatency.dispatch({ x, topkIdx, topkWeights, dtype: 'bf16' });
    // In place of experts: rows come back as they are.
    await lowLatency.combine({ x: recvX, handle, out });
  };
  let forward = layer;
  if (device instanceof CudaDevice) {
    await layer(); // kernels are compiled and memory is taken before anything is recorded
    const graph = await device.capture(layer);
    forward = async () => graph.launch();
  }

  let value = 1 + world.rank;
  for (let step = 0; step < steps; step += 1) {
    // What a model computes from the token before: values, and the two experts that its router chooses.
    await x.fromHost(new Uint16Array(tokens * hidden).fill(toBf16(value)));
    const choices = Array.from({ length: tokens }, (_, token) => [(token + step) % 4, (token + step + 2) % 4]);
    await topkIdx.fromHost(Int32Array.from(choices.flat()));
    await forward();
    const sum = fromBf16((await out.toHost())[0]); // waits for what was enqueued
    assert.equal(sum, value); // both experts return the row, half of each is added
    value = sum + 1;
  }
  console.log(`${steps} steps, the last value is ${value - 1}`);
} finally {
  await lowLatency.close();
  await device.close();
  await world.close();
}
