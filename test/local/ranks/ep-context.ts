// Allocates, grows and finalizes a DispatchCombineContext; then a layer whose capacity is too small for its first call.
// argv: "aot" for a layer of kernels compiled ahead of time.
import { fromBf16, toBf16, WeftlineError } from 'weftline';
import { DispatchCombineContext, EPAll2AllLayer, EPConfig } from 'weftline/ep';
import { join } from 'weftline/world';
import { bytesInUse, openTestDevice } from '../support/test-device.ts';

await using world = await join();
const device = await openTestDevice(world);

async function codeOf(call: () => unknown): Promise<string> {
  try {
    await call();
    return 'no error';
  } catch (error) {
    return error instanceof WeftlineError ? error.code : String(error);
  }
}

const epConfig = new EPConfig({
  maxTokensPerRank: 8,
  hidden: 16,
  maxTopk: 2,
  numExperts: 4,
  rank: world.rank,
  worldSize: world.size,
  localWorldSize: world.localSize,
});
const context = await DispatchCombineContext.create(world, device, epConfig, { capacity: 0.25 });
const first = context.outputSize.capacityRows;
const old = context.outputBuffers.dispatchOutputBuf;
await context.reallocateDispatchOutputBuf(3);
const kept = context.outputSize.capacityRows;
const { dispatchOutputBuf, weightRecvBuf } = await context.reallocateDispatchOutputBuf(20);
const found: Record<string, unknown> = {
  first,
  kept,
  grown: context.outputSize.capacityRows,
  shapes: [dispatchOutputBuf.shape, weightRecvBuf.shape],
  stale: await codeOf(() => old.view()),
  tooMany: await codeOf(() => context.reallocateDispatchOutputBuf(33)),
};
await context.close();
await context.close();

// Everyone sends four tokens to expert `rank`'s neighbour at the same rank: 8 rows there, capacity for 2.
const useAot = process.argv[2] === 'aot';
const options = { maxTokensPerRank: 8, hidden: 16, maxTopk: 2, numExperts: 4, capacity: 0.1, useAot };
const layer = await EPAll2AllLayer.create(world, device, options);
const input = await device.tensor(
  'bf16',
  [4, 16],
  Uint16Array.from({ length: 64 }, (_, i) => toBf16(1 + Math.floor(i / 16))),
);
const topkIdx = await device.tensor(
  'i32',
  [4, 2],
  Int32Array.from({ length: 8 }, (_, i) => (i % 2) * 2),
);
const { recvX: output, handle } = await layer.dispatch({ x: input, topkIdx });
found['layerRows'] = handle.numRecvTokens;
found['layerOutput'] = [...(await output.toHost())].filter((_, i) => i % 16 === 0).map(fromBf16);
for (const one of [input, topkIdx, handle]) one.close();
await layer.close();
found['finalized'] = await codeOf(() => layer.barrier());
found['left'] = bytesInUse(device) ?? 0;
console.log(JSON.stringify(found));
