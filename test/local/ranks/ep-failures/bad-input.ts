// Input that one rank finds wrong once the call has begun, or cannot use: nothing of it stays behind.
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { config, device, failureOf, ids, layerOptions, type Scenarios, tokens, world } from './context.ts';

const good = [
  [0, 1],
  [0, 3],
];
const oneBad = [
  [0, 1],
  [0, 7],
];

export const badInput: Scenarios = {
  async 'stale event'() {
    if (device.kind !== 'cuda') throw new Error('this scenario is for GPUs');
    const buffer = await EpBuffer.create(world, device, config);
    const [x, topkIdx] = [await tokens(1), await ids([[0, 3]])];
    const previousEvent = device.createEvent();
    previousEvent[Symbol.dispose]();
    const failure = await failureOf(async () => {
      if (world.rank === 0) await buffer.dispatch({ x, topkIdx, previousEvent, timeoutMs: 60_000 });
    });
    // Nothing has happened: the same call again finds the other rank.
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx, timeoutMs: 60_000 });
    await recvX.toHost();
    return { ...failure, received: handle.numRecvTokens };
  },

  async 'shifted rows'() {
    const buffer = await EpBuffer.create(world, device, config);
    const topkIdx = await ids([
      [0, 1],
      [2, 3],
    ]);
    const x = (await tokens(1, 33)).reshape([33]).slice(1, 33).reshape([2, 16]);
    const failure = await failureOf(() => buffer.dispatch({ x, topkIdx }));
    await (await buffer.dispatch({ x: await tokens(2), topkIdx })).handle.rowTable.toHost();
    return failure;
  },

  async 'buffer choice'() {
    const buffer = await EpBuffer.create(world, device, config);
    const x = await tokens(2);
    const topkIdx = await ids(world.rank === 1 ? oneBad : good);
    const failure = await failureOf(async () => (await buffer.dispatch({ x, topkIdx })).handle.rowTable.toHost());
    const { handle } = await buffer.dispatch({ x, topkIdx: await ids(good) });
    await buffer.combine({ x: buffer.combineInput(handle), handle });
    return failure;
  },

  async 'layer choice'() {
    const layer = await EPAll2AllLayer.create(world, device, layerOptions);
    const input = await tokens(2);
    const topkIdx = await ids(world.rank === 1 ? oneBad : good);
    const failure = await failureOf(() => layer.dispatch({ x: input, topkIdx }));
    const { recvX: output, handle } = await layer.dispatch({ x: input, topkIdx: await ids(good) });
    await layer.combine({ x: output, handle });
    await layer.barrier();
    return failure;
  },

  'layer without AOT kernels': () =>
    failureOf(() => EPAll2AllLayer.create(world, device, { ...layerOptions, useAot: true })),

  'scatter out of block': () => scatter((places) => (world.rank === 1 ? places.map((place) => place + 1) : places)),

  'scatter repeated': () => scatter((places) => (world.rank === 1 ? [0, 2] : places)),
};

/** Two tokens per rank, all to expert 0 then 2; `change` spoils the good places. */
async function scatter(change: (places: number[]) => number[]): Promise<unknown> {
  const layer = await EPAll2AllLayer.create(world, device, {
    maxTokensPerRank: 2,
    hidden: 16,
    maxTopk: 1,
    numExperts: 4,
  });
  const places = change(world.rank === 0 ? [0, 2] : [1, 3]);
  const [input, topkIdx] = [await tokens(2), await ids([[0], [2]])];
  const fullScatterIndices = await ids(places.map((place) => [place]));
  return failureOf(() => layer.dispatch({ x: input, topkIdx, fullScatterIndices }));
}
