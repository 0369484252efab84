// Ranks that meet in different calls, or with different shapes.
import { type DispatchHandle, EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { config, device, failureOf, ids, layerOptions, type Scenarios, tokens, world } from './context.ts';

export const disagreements: Scenarios = {
  async 'other call'() {
    const buffer = await EpBuffer.create(world, device, config);
    const x = await tokens(2);
    const { handle } = await buffer.dispatch({
      x,
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    // On a GPU the call has returned before its kernel meets the others.
    if (world.rank === 0) {
      return failureOf(async () => (await buffer.dispatch({ x, handle })).handle.recvSrcIdx.toHost());
    }
    return failureOf(async () => {
      const { combinedX } = await buffer.combine({ x: buffer.combineInput(handle), handle });
      await combinedX.toHost();
    });
  },

  async 'other handle'() {
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [
      await tokens(2),
      await ids([
        [0, 3],
        [3, 0],
      ]),
    ];
    const handles = [(await buffer.dispatch({ x, topkIdx })).handle, (await buffer.dispatch({ x, topkIdx })).handle];
    return failureOf(() => buffer.dispatch({ x, handle: handles[world.rank] as DispatchHandle }));
  },

  async 'other descriptor'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const [input, topkIdx] = [
      await tokens(2),
      await ids([
        [0, 3],
        [3, 0],
      ]),
    ];
    const first = await layer.dispatch({ x: input, topkIdx });
    const second = await layer.dispatch({ x: input, topkIdx });
    const { handle } = world.rank === 0 ? first : second;
    return failureOf(() => layer.combine({ x: layer.combineInput(handle), handle }));
  },

  async 'weights on one rank'() {
    const buffer = await EpBuffer.create(world, device, config);
    const { handle } = await buffer.dispatch({
      x: await tokens(2),
      topkIdx: await ids([
        [0, 3],
        [3, 0],
      ]),
    });
    const topkWeights = device.empty('f32', [handle.rows, 2]);
    const x = buffer.combineInput(handle);
    return failureOf(() => buffer.combine({ x, handle, ...(world.rank === 0 && { topkWeights }) }));
  },

  'invalid on one rank': () =>
    failureOf(() => EpBuffer.create(world, device, { ...config, hidden: world.rank === 0 ? 12 : 16 })),

  'invalid on all ranks': () => failureOf(() => EpBuffer.create(world, device, { ...config, hidden: 12 })),

  async 'other topk'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids(world.rank === 0 ? [[0, 1]] : [[2]]);
    return failureOf(async () => buffer.dispatch({ x: await tokens(1), topkIdx }));
  },

  async 'other dtype'() {
    const buffer = await EpBuffer.create(world, device, config);
    const fp8 = { data: device.empty('fp8e4m3', [1, 16]), scales: device.empty('f32', [1, 1]) };
    const x = world.rank === 0 ? fp8 : await tokens(1);
    return failureOf(async () => buffer.dispatch({ x, topkIdx: await ids([[0, 1]]) }));
  },

  async 'other config'() {
    return failureOf(() => EpBuffer.create(world, device, { ...config, hidden: world.rank === 0 ? 16 : 24 }));
  },

  async 'other weights'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const [input, topkIdx] = [await tokens(1), await ids([[0, 3]])];
    const weight = await device.tensor('f32', [1, 2], new Float32Array(2));
    return failureOf(() => layer.dispatch({ x: input, topkIdx, ...(world.rank === 0 && { topkWeights: weight }) }));
  },
};
