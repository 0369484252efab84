// One call of each kind, and a digest of all results as the result of the rank: argv = "killed" to be killed behind them.
import { createHash } from 'node:crypto';
import type { Tensor } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.ts';
import { lowLatencyModes, makeShapes } from './low-latency-shapes.ts';

const [tokens, hidden, topk, experts] = [256, 1024, 4, 16];
await using world = await join();
await using device = await openTestDevice(world);
const next = random(world.rank + 1);
const digest = createHash('sha256');
const add = async (tensor: Tensor): Promise<void> => {
  digest.update(await tensor.toHost());
};
const values = Uint16Array.from({ length: tokens * hidden }, () => next() * 0x7f00);
const x = await device.tensor('bf16', [tokens, hidden], values);
const choices = Int32Array.from({ length: tokens * topk }, (_, cell) => (cell * 5 + world.rank) % experts);
const topkIdx = await device.tensor('i32', [tokens, topk], choices);

async function bufferCalls(): Promise<void> {
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  await using buffer = await EpBuffer.create(world, device, config);
  for (let call = 0; call < 3; call++) {
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
    await add(recvX);
    const { combinedX } = await buffer.combine({ x: recvX, handle });
    await add(combinedX);
  }
}

async function layerCalls(): Promise<void> {
  const options = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts, enableLocalCombine: true };
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const { recvX: output, handle } = await layer.dispatch({ x, topkIdx });
  await add(output);
  await add(await layer.combine({ x: output, handle }));
}

async function lowLatencyCalls(): Promise<void> {
  const shapes = await makeShapes(world, device, next);
  for (const mode of lowLatencyModes) {
    await using ll = await EpLowLatency.create(world, device, shapes.config(mode));
    const result = await ll.dispatch({ ...shapes.dispatchArgs(mode), returnRecvHook: false });
    await add(result.recvCount);
    const { combinedX } = await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: false });
    await add(combinedX);
    await ll.barrier();
  }
}

async function collectiveCalls(): Promise<void> {
  await using communicator = await Communicator.create(world, device);
  const input = await device.tensor('f32', [4096], Float32Array.from({ length: 4096 }, next));
  const sum = device.empty('f32', [4096]);
  await communicator.allReduce({ input, output: sum });
  await add(sum);
  const all = device.empty('f32', [4096 * world.size]);
  await communicator.allGather({ input, output: all });
  await add(all);
  const peer = (world.rank + 1) % world.size;
  const from = (world.rank + world.size - 1) % world.size;
  communicator.groupStart();
  void communicator.send({ input, peer });
  void communicator.recv({ output: sum, peer: from });
  await communicator.groupEnd();
  await add(sum);
}

await bufferCalls();
await layerCalls();
await lowLatencyCalls();
await collectiveCalls();
console.log(JSON.stringify(digest.digest('hex')));
if (process.argv[2] === 'killed') process.kill(process.pid, 'SIGKILL');
