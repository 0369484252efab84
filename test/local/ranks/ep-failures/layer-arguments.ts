// Arguments of a layer and its calls that are wrong by themselves.
import type { Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { device, ids, layerOptions, type Scenarios, tokens, world } from './context.ts';

/** By name of what is wrong. */
export async function wrongLayerCalls(): Promise<Scenarios> {
  const layer = await EPAll2AllLayer.create(world, device, layerOptions);
  const x = await tokens(2);
  const topkIdx = await ids([
    [0, 1],
    [2, 3],
  ]);
  const topkWeights = await device.tensor('f32', [2, 2], new Float32Array(4));
  const layerWeights = async (): Promise<Tensor<'f32'>> => {
    const { recvTopkWeights: weights } = await layer.dispatch({ x, topkIdx, topkWeights });
    return weights.slice(0, 4).reshape([2, 2]);
  };
  return {
    'layer experts': async () =>
      layer.dispatch({
        x,
        topkIdx: await ids([
          [0, 9],
          [1, 2],
        ]),
      }),
    'layer numExperts': () => EPAll2AllLayer.create(world, device, { ...layerOptions, numExperts: 0 }),
    'layer weight in the window': async () => layer.dispatch({ x, topkIdx, topkWeights: await layerWeights() }),
    'layer after its context': async () => {
      const closing = await EPAll2AllLayer.create(world, device, layerOptions);
      await closing.context.close();
      await closing.barrier();
    },
    'layer weights': () => layer.dispatch({ x, topkIdx, topkWeights: device.empty('bf16', [2, 2]) }),
    'layer unknown option': () =>
      EPAll2AllLayer.create(world, device, { ...layerOptions, capasity: 3 } as typeof layerOptions),
    'layer both names': () => layer.dispatch({ x, input: x, topkIdx }),
    'layer unknown argument': () => layer.dispatch({ x, topkIdx, topkWeight: topkWeights } as never),
    'no device': () => EpBuffer.create(world, layerOptions as never, undefined as never),
    'layer no device': () => EPAll2AllLayer.create(world, layerOptions as never, undefined as never),
    'layer dtype': () => EPAll2AllLayer.create(world, device, { ...layerOptions, dtype: 'fp8' as 'f16' }),
    'layer offsetDtype': () => EPAll2AllLayer.create(world, device, { ...layerOptions, offsetDtype: 'u8' as 'i64' }),
    'layer dtype of input': async () => {
      await using half = await EPAll2AllLayer.create(world, device, { ...layerOptions, dtype: 'f16' });
      await half.dispatch({ x: x as never, topkIdx });
    },
    'layer stream': () => layer.barrier({ stream: 1 as never }),
    'layer call between stages': async () => {
      const staged = await layer.preprocess({ x, topkIdx });
      try {
        await layer.dispatch({ x, topkIdx });
      } finally {
        await layer.initOutputBuffer(staged);
        await layer.dispatchToken(staged);
        const { handle } = await layer.dispatchPostprocess(staged);
        handle.close();
      }
    },
    'layer stage too early': async () => {
      const staged = await layer.preprocess({ x, topkIdx });
      try {
        await layer.dispatchToken(staged);
      } finally {
        await layer.initOutputBuffer(staged);
        await layer.dispatchToken(staged);
        const { handle } = await layer.dispatchPostprocess(staged);
        handle.close();
      }
    },
    'layer stage with a bad option': async () => {
      const staged = await layer.preprocess({ x, topkIdx });
      try {
        await layer.initOutputBuffer(staged, { timeoutMs: -1 });
      } finally {
        await layer.initOutputBuffer(staged);
        await layer.dispatchToken(staged);
        const { handle } = await layer.dispatchPostprocess(staged);
        handle.close();
      }
    },
    'layer stage of nothing': () => layer.initOutputBuffer({} as never),
    'layer topk': async () => layer.dispatch({ x, topkIdx: await ids([[0], [1]]) }),
  };
}
