// Arguments of an EpBuffer and its calls that are wrong by themselves.
import { CpuDevice, type Tensor } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { config, device, failureOf, ids, type Scenarios, tokens, world } from './context.ts';

/** By name of what is wrong. */
export async function wrongBufferCalls(): Promise<Scenarios> {
  const buffer = await EpBuffer.create(world, device, config);
  const other = await EpBuffer.create(world, device, config);
  const x = await tokens(2);
  const topkIdx = await ids([
    [0, 1],
    [2, 3],
  ]);
  const disposed = await tokens(2);
  disposed.close();
  const elsewhere = await (await CpuDevice.create()).tensor('bf16', [2, 16], new Uint16Array(32));
  const { handle, recvX: received } = await buffer.dispatch({ x, topkIdx });
  const gone = (await buffer.dispatch({ x, topkIdx })).handle;
  gone.close();
  const wide = await device.tensor('i64', [1, 2], BigInt64Array.from([4_294_967_296n, 0n]));
  const f32 = device.empty('f32', [2, 16]) as unknown as Tensor<'bf16'>;
  const one = await tokens(1);
  const topkWeights = await device.tensor('f32', [2, 2], new Float32Array(4));
  const otherLayout = buffer.getDispatchLayout({
    topkIdx: await ids([
      [0, 1],
      [2, -1],
    ]),
  });
  const wrongLayout = buffer.getDispatchLayout({ topkIdx });
  wrongLayout.numTokensPerRank.view()[0] = 1;
  return {
    'x dtype': () => buffer.dispatch({ x: f32, topkIdx }),
    'x shape': async () => buffer.dispatch({ x: await tokens(2, 8), topkIdx }),
    'x missing': () => buffer.dispatch({ topkIdx } as unknown as Parameters<EpBuffer['dispatch']>[0]),
    'x disposed': () => buffer.dispatch({ x: disposed, topkIdx }),
    'x of another device': () => buffer.dispatch({ x: elsewhere, topkIdx }),
    'x in the window': () => buffer.dispatch({ x: received, topkIdx }),
    'weights in the window': async () => {
      const { recvTopkWeights } = await buffer.dispatch({ x, topkIdx, topkWeights });
      await buffer.dispatch({ x, topkIdx, topkWeights: recvTopkWeights });
    },
    'layout of other choices': () => buffer.dispatch({ x, topkIdx, layout: otherLayout }),
    'layout with wrong counts': () => buffer.dispatch({ x, layout: wrongLayout }),
    'combineInput of a foreign handle': async () => other.combineInput(handle),
    'worst beside a handle': () => buffer.dispatch({ x, handle, numWorstTokens: 4 }),
    'timeout NaN': () => buffer.dispatch({ x, topkIdx, timeoutMs: Number.NaN }),
    'too many tokens': async () => buffer.dispatch({ x: await tokens(9), topkIdx }),
    'expert too large': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, 1],
          [4, 3],
        ]),
      }),
    'expert below -1': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, -2],
          [1, 3],
        ]),
      }),
    'expert beyond i32': () => buffer.dispatch({ x: one, topkIdx: wide }),
    'topk too wide': async () =>
      buffer.dispatch({
        x,
        topkIdx: await ids([
          [0, 1, 2],
          [1, 2, 3],
        ]),
      }),
    'no routing': () => buffer.dispatch({ x }),
    'handle and topk': () => buffer.dispatch({ x, topkIdx, handle }),
    'handle of another buffer': () => other.dispatch({ x, handle }),
    'disposed handle': () => buffer.dispatch({ x, handle: gone }),
    'combine shape': () => buffer.combine({ x: one, handle }),
    'second call': async () => {
      const first = buffer.dispatch({ x, topkIdx });
      const second = failureOf(() => buffer.dispatch({ x, topkIdx }));
      await first;
      throw new Error((await second).message);
    },
    'hidden not of 8': () => EpBuffer.create(world, device, { ...config, hidden: 12 }),
    'experts not divisible': () => EpBuffer.create(world, device, { ...config, numExperts: 0 }),
    'topk over 32': () => EpBuffer.create(world, device, { ...config, maxTopk: 33 }),
    'after close': async () => {
      await other[Symbol.asyncDispose]();
      await other.dispatch({ x, topkIdx });
    },
  };
}
