// Calls of every object while a kernel of the caller holds a multiprocessor and waits for them: argv = scenario.
import assert from 'node:assert/strict';
import type { CudaDevice } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';
import { lowLatencyModes, makeShapes } from '../../local/ranks/low-latency-shapes.ts';
import { openTestDevice } from '../../local/support/test-device.ts';
import {
  callBuffer,
  callLayer,
  createBuffer,
  createLayer,
  type GraphShape,
  makeInputs,
} from './ep-graph/graph-cases.ts';

const [scenario] = process.argv.slice(2);
await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;

/** By when the kernel ends by itself, so that a failing test ends. */
const GIVES_UP_SECONDS = 60;
const source = `
extern "C" __global__ void holdMultiprocessor(volatile unsigned* words, unsigned seconds) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - began > seconds * 1000000000ull) words[1] = 1;
  } while (words[0] == 0 && words[1] == 0);
}`;
const { holdMultiprocessor } = await device.compile({
  name: 'hold-multiprocessor.cu',
  source,
  kernels: { holdMultiprocessor: { words: 'ptr', seconds: 'u32' } },
});
const holding = device.createStream();
const releasing = device.createStream();
const words = device.empty('i32', [2]);

/** The calls end while the kernel still runs, which then is let go. */
async function beside(what: string, calls: () => Promise<void>): Promise<void> {
  // Before it holds anything, all that is compiled or taken once is there.
  await calls();
  await words.fromHost(new Int32Array(2));
  await world.barrier(`${what} alone`);
  // No block fits beside one that has all of the shared memory.
  const sharedBytes = device.properties.sharedBytesPerBlock;
  holdMultiprocessor.launch({ grid: 1, block: 32, sharedBytes }, { words, seconds: GIVES_UP_SECONDS }, holding);
  await calls();
  assert.equal(holding.isIdle(), false, `${what}: the kernel ended before the calls`);
  await world.barrier(`${what} beside`);
  device.setBytes({ address: words.address, bytes: 4 }, 1, releasing);
  await holding.idle();
}

async function lowLatency(): Promise<void> {
  for (const mode of lowLatencyModes) {
    for (const elastic of [false, true]) {
      const shapes = await makeShapes(world, device, random(world.rank + 1));
      await using ll = await EpLowLatency.create(world, device, { ...shapes.config(mode), elastic });
      await beside(`${mode}, elastic ${elastic}`, async () => {
        const result = await ll.dispatch({ ...shapes.dispatchArgs(mode), returnRecvHook: false });
        const { combinedX } = await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: false });
        await combinedX.toHost();
        combinedX.close();
      });
    }
  }
}

const shape: GraphShape = {
  tokens: 100,
  hidden: 1024,
  topk: 4,
  expertsPerRank: 4,
  fp8: false,
  overlap: false,
  localCombine: true,
  keepOutput: false,
  wideOffsets: false,
};

async function manyTokens(): Promise<void> {
  const inputs = makeInputs(world, device, { shape, next: random(world.rank + 1) });
  await inputs.refill();
  await using buffer = await createBuffer(world, device, shape);
  await using layer = await createLayer(world, device, shape);
  for (const isBounded of [false, true]) {
    await beside(`buffer, bounded ${isBounded}`, async () => {
      using calls = await callBuffer(buffer, inputs, { shape, isBounded });
      await calls.read();
    });
    await beside(`layer, bounded ${isBounded}`, async () => {
      using calls = await callLayer(layer, inputs, { shape, isBounded });
      await calls.read();
    });
  }
  inputs.dispose();
}

/** Dispatches of a buffer on a stream of its own beside low-latency calls: the ranks begin with different ones. */
async function overlapping(): Promise<void> {
  const inputs = makeInputs(world, device, { shape, next: random(world.rank + 1) });
  await inputs.refill();
  const shapes = await makeShapes(world, device, random(world.rank + 1));
  await using buffer = await createBuffer(world, device, shape);
  await using ll = await EpLowLatency.create(world, device, shapes.config('rank-sums'));
  using ready = device.createEvent().record(device.stream);
  await beside('low latency beside a buffer', async () => {
    for (let round = 0; round < 20; round++) {
      const lowLatencyCalls = async (): Promise<void> => {
        const result = await ll.dispatch({ ...shapes.dispatchArgs('rank-sums'), returnRecvHook: false });
        (await ll.combine({ ...shapes.combineArgs('rank-sums', result), returnRecvHook: false })).combinedX.close();
      };
      const dispatch = async (): Promise<void> => {
        const { x, topkIdx } = inputs;
        const numWorstTokens = shape.tokens * world.size;
        const { handle, event } = await buffer.dispatch({
          x,
          topkIdx,
          numWorstTokens,
          previousEvent: ready,
          asyncFinish: true,
        });
        await event!.wait();
        handle.close();
      };
      const order = world.rank % 2 === 0 ? [lowLatencyCalls, dispatch] : [dispatch, lowLatencyCalls];
      await Promise.all(order.map((calls) => calls()));
      await device.stream.idle();
    }
  });
  inputs.dispose();
}

async function collectives(): Promise<void> {
  await using communicator = await Communicator.create(world, device);
  const input = await device.tensor('f32', [300_000], new Float32Array(300_000).fill(1));
  const output = device.empty('f32', [300_000]);
  await beside('allReduce', async () => {
    await communicator.allReduce({ input, output });
    assert.equal((await output.toHost())[0], world.size);
  });
}

const scenarios: Readonly<Record<string, () => Promise<void>>> = { lowLatency, manyTokens, overlapping, collectives };
await scenarios[scenario!]!();
