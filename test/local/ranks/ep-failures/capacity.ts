// More than memory, a bound or /dev/shm has room for.
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import {
  addressSpace,
  config,
  device,
  failureOf,
  fillMemory,
  ids,
  layerOptions,
  type Scenarios,
  tokens,
  world,
} from './context.ts';

export const capacity: Scenarios = {
  async 'no room'() {
    const space = addressSpace().largestGap - (world.rank === 0 ? 1024 : 0);
    device.empty('u8', [world.rank === 0 ? space : 8]);
    const failure = await failureOf(() => EpBuffer.create(world, device, config));
    if (world.rank === 0 && addressSpace().largestGap !== 1024) throw new Error('something was not given back');
    return failure;
  },

  async 'layer cannot grow'() {
    const options = { ...layerOptions, maxTokensPerRank: 4096, hidden: 1024, capacity: 0.01 };
    const layer = await EPAll2AllLayer.create(world, device, options);
    const [fits, large] = [
      { x: await tokens(8, 1024), topkIdx: await ids(Array.from({ length: 8 }, () => [0, 2])) },
      { x: await tokens(4096, 1024), topkIdx: await ids(Array.from({ length: 4096 }, () => [0, 2])) },
    ];
    const fillers = fillMemory();
    await layer.dispatch(fits);
    const failure = await failureOf(() => layer.dispatch(large));
    // The layer goes on with what it had.
    const { handle, output } = await layer.dispatch(fits);
    await (await layer.combine({ x: output, handle })).toHost();
    for (const filler of fillers) filler.close();
    return failure;
  },

  async 'worst too small'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [2, 3],
      [2, 3],
    ]);
    return failureOf(async () => {
      const { recvX } = await buffer.dispatch({ x: await tokens(2), topkIdx, numWorstTokens: 2 });
      // A GPU's dispatch with a bound has not waited.
      await recvX.toHost();
    });
  },

  async 'calls behind worst too small'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [2, 3],
      [2, 3],
    ]);
    const x = await tokens(2);
    return failureOf(async () => {
      const { handle } = await buffer.dispatch({ x, topkIdx, numWorstTokens: 2 });
      // A GPU's dispatch with a bound has not waited: kernels of these calls follow one that moved nothing.
      const { recvX } = await buffer.dispatch({ x, handle });
      const { combinedX } = await buffer.combine({ x: recvX, handle });
      await combinedX.toHost();
    });
  },

  async 'worst of one rank too small'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [2, 3],
      [2, 3],
    ]);
    return failureOf(async () => {
      const bound = world.rank === 1 ? { numWorstTokens: 2 } : {};
      const { recvX } = await buffer.dispatch({ x: await tokens(2), topkIdx, ...bound });
      await recvX.toHost();
    });
  },

  async 'worst too small, then none'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([[2], [3]]);
    const x = await tokens(2);
    const choices = await ids([
      [0, 2],
      [2, 3],
    ]);
    await buffer.dispatch({ x, topkIdx, numWorstTokens: 1 });
    const first = await failureOf(() => buffer.dispatch({ x, topkIdx: choices }));
    const second = await failureOf(() => buffer.dispatch({ x, topkIdx: choices }));
    return { ...first, again: second.code };
  },

  async 'address space'() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, maxTokensPerRank: 100_000, hidden: 8192 }));
  },

  async small() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, maxTokensPerRank: 1024, hidden: 4096 }));
  },
};
