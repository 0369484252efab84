// Ranks that die, stay away, close or give up: what the others see.
import { setTimeout as sleep } from 'node:timers/promises';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import {
  addressSpace,
  config,
  device,
  failureOf,
  ids,
  layerOptions,
  type Scenarios,
  tokens,
  world,
} from './context.ts';

/** Rank 1 stays away until another has given up. */
async function untilOthersGaveUp(): Promise<void> {
  if (world.rank === 1) await world.store.get('gave up', { timeoutMs: 120_000 });
}

async function thenTell<T>(failure: T): Promise<T> {
  if (world.rank !== 1) await world.store.set('gave up', new Uint8Array(1));
  return failure;
}

export const lostRanks: Scenarios = {
  async loop() {
    const buffer = await EpBuffer.create(world, device, { ...config, maxTokensPerRank: 512, hidden: 4096 });
    const x = await tokens(512, 4096);
    const topkIdx = await ids(Array.from({ length: 512 }, (_, t) => [t % 4, (t + 1) % 4]));
    return failureOf(async () => {
      for (let round = 0; ; round += 1) {
        if (round === 20) console.log(`running ${process.pid} ${world.filePrefix}`);
        (await buffer.dispatch({ x, topkIdx })).handle.close();
      }
    });
  },

  async absent() {
    const buffer = await EpBuffer.create(world, device, config);
    await untilOthersGaveUp();
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    return thenTell(await failureOf(() => buffer.dispatch({ x, topkIdx, timeoutMs: 400 })));
  },

  async 'lost before combine'() {
    const buffer = await EpBuffer.create(world, device, config);
    const { handle } = await buffer.dispatch({
      x: await tokens(2),
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    // Across hosts a dispatch returns before what it sent has arrived: until then the end of this rank would fail that of the other.
    if (world.rank === 1) {
      await world.store.get('dispatched', { timeoutMs: 120_000 });
      process.kill(process.pid, 'SIGKILL');
    }
    await world.store.set('dispatched', new Uint8Array(1));
    return failureOf(async () => {
      const { combinedX } = await buffer.combine({ x: buffer.combineInput(handle), handle });
      // On a GPU the call itself has returned before its kernel waits; what it left must not pass for a result.
      await combinedX.toHost();
    });
  },

  async abort() {
    const buffer = await EpBuffer.create(world, device, config);
    await untilOthersGaveUp();
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    const controller = new AbortController();
    // Whenever it comes: the call cannot end before.
    setTimeout(() => controller.abort(new Error('enough')), 100);
    return thenTell(
      await failureOf(() => buffer.dispatch({ x, topkIdx, ...(world.rank === 0 && { signal: controller.signal }) })),
    );
  },

  async 'fails alone'() {
    const buffer = await EpBuffer.create(world, device, { ...config, maxTokensPerRank: 4096 });
    const [x, topkIdx] = [await tokens(4096), await ids(Array.from({ length: 4096 }, () => [0, 2]))];
    // The handle's tables do not fit at rank 0, which it notices after the ranks have met.
    const filler = world.rank === 0 ? device.empty('u8', [addressSpace().largestGap - 1024]) : undefined;
    const failure = await failureOf(() => buffer.dispatch({ x, topkIdx }));
    // Held until here: what nobody holds would make room.
    filler?.close();
    return failure;
  },

  async 'closes its buffer'() {
    const buffer = await EpBuffer.create(world, device, config);
    await buffer.barrier();
    const x = await tokens(2);
    const topkIdx = await ids([
      [0, 1],
      [2, 3],
    ]);
    if (world.rank === 1) {
      await buffer[Symbol.asyncDispose]();
      // The process goes on: it is not its end that the other hears of.
      await world.store.get('heard', { timeoutMs: 120_000 });
      return 'closed';
    }
    const failure = await failureOf(() => buffer.dispatch({ x, topkIdx }));
    await world.store.set('heard', new Uint8Array(1));
    return failure;
  },

  async 'closes its device'() {
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    (await buffer.dispatch({ x, topkIdx })).handle.close();
    await world.barrier('used');
    await device.close();
    // What still looked at its memory would end the process.
    await sleep(200);
    return failureOf(() => buffer.dispatch({ x, topkIdx }));
  },

  async 'closes with an error'() {
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    if (world.rank === 0) return failureOf(() => buffer.dispatch({ x, topkIdx, timeoutMs: 30_000 }));
    // Whenever it closes; by then rank 0 waits in its dispatch.
    await sleep(100);
    await world.close(new Error('boom'));
    // The process goes on for a while: it is not its end that the other hears of.
    await sleep(1_000);
    return 'closed';
  },

  async 'layer loop'() {
    const layer = await EPAll2AllLayer.create(world, device, { ...layerOptions, numExperts: 6 });
    const [input, topkIdx] = [await tokens(8), await ids(Array.from({ length: 8 }, (_, t) => [t % 6, (t + 1) % 6]))];
    return failureOf(async () => {
      for (let round = 0; ; round += 1) {
        if (round === 20) console.log(`running ${process.pid}`);
        const { recvX: output, handle } = await layer.dispatch({ x: input, topkIdx });
        (await layer.combine({ x: output, handle })).close();
        handle.close();
      }
    });
  },

  async 'layer absent'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    await untilOthersGaveUp();
    const [input, topkIdx] = [await tokens(1), await ids([[0, 1]])];
    return thenTell(await failureOf(() => layer.dispatch({ x: input, topkIdx, timeoutMs: 400 })));
  },
};
