// A program across hosts that ends without a close(): argv names the object. Each rank prints what it got in its last call.
import { existsSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, fromBf16 } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';

const [, , what, file = ''] = process.argv;
const [tokens, hidden, topk] = [32, 64, 2];
const world = await join();
const device = await CpuDevice.create();
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
/** Each token goes to two ranks. */
const ids = Int32Array.from({ length: tokens * topk }, (_, at) => ((at >> 1) + (at & 1)) % world.size);
const topkIdx = await device.tensor('i32', [tokens, topk], ids);
const config = { maxTokensPerRank: tokens, hidden, numExperts: world.size, maxTopk: topk };

async function useLayer(): Promise<number> {
  const layer = await EPAll2AllLayer.create(world, device, config);
  const { recvX, handle } = await layer.dispatch({ x, topkIdx });
  return fromBf16((await layer.combine({ x: recvX, handle })).view()[0]!);
}

async function useBuffer(): Promise<number> {
  const buffer = await EpBuffer.create(world, device, config);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  return fromBf16((await buffer.combine({ x: recvX, handle })).combinedX.view()[0]!);
}

async function useLowLatency(): Promise<number> {
  const lowLatency = await EpLowLatency.create(world, device, config);
  const topkWeights = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(1));
  const { recvX, handle } = await lowLatency.dispatch({ x, topkIdx, topkWeights, dtype: 'bf16' });
  return fromBf16((await lowLatency.combine({ x: recvX, handle })).combinedX.view()[0]!);
}

/** What rank 0 sends to rank 3 comes to that one's host through rank 2, whose program has ended by then. */
async function useCommunicator(): Promise<number> {
  const communicator = await Communicator.create(world, device);
  const one = await device.tensor('i32', [1 << 20], new Int32Array(1 << 20).fill(1));
  await communicator.allReduce({ output: one });
  if (world.rank === 2) process.once('beforeExit', () => writeFileSync(file, ''));
  if (world.rank === 0) {
    while (!existsSync(file)) await sleep(1);
    // Time to end, if nothing kept it.
    await sleep(300);
    await communicator.send({ input: one, peer: 3 });
  }
  if (world.rank === 3) await communicator.recv({ output: one, peer: 0 });
  return Number(one.view()[0]);
}

const programs: Readonly<Record<string, () => Promise<number>>> = {
  EPAll2AllLayer: useLayer,
  EpBuffer: useBuffer,
  EpLowLatency: useLowLatency,
  Communicator: useCommunicator,
};
console.log(JSON.stringify(await programs[what!]!()));
