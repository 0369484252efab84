// Arguments of a layer and its calls that are wrong by themselves.
import type { Tensor } from 'weftline';
import { EPAll2AllLayer } from 'weftline/ep';
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
    const { weights } = await layer.dispatch({ input: x, expIndices: topkIdx, weight: topkWeights });
    return (weights as Tensor<'f32'>).slice(0, 4).reshape([2, 2]);
  };
  return {
    'layer experts': async () =>
      layer.dispatch({
        input: x,
        expIndices: await ids([
          [0, 9],
          [1, 2],
        ]),
      }),
    'layer numTotExperts': () => EPAll2AllLayer.create(world, device, { ...layerOptions, numTotExperts: 0 }),
    'layer weight in the window': async () =>
      layer.dispatch({ input: x, expIndices: topkIdx, weight: await layerWeights() }),
    'layer after its context': async () => {
      const closing = await EPAll2AllLayer.create(world, device, layerOptions);
      await closing.context.finalize();
      await closing.epBarrierAll();
    },
    'layer weights': () => layer.dispatch({ input: x, expIndices: topkIdx, weight: device.empty('bf16', [2, 2]) }),
    'layer topk': async () => layer.dispatch({ input: x, expIndices: await ids([[0], [1]]) }),
  };
}
