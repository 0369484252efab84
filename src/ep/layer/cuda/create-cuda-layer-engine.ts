// Makes the engine of a layer on GPUs: the ranks compile and, on several hosts, make links together.
import { agreeOn } from '../../../group/agree.ts';
import { CudaCalls } from '../../../group/cuda-calls.ts';
import type { CallWait } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { TensorSet } from '../../../device/device.ts';
import { CudaHostNetwork } from '../../across-hosts/cuda-host-network.ts';
import type { DispatchCombineContext } from '../dispatch-combine-context.ts';
import type { LayerEngine, LayerEngineOptions } from '../layer-engine.ts';
import { isWideSum, layerPinnedSize } from '../output-size.ts';
import type { CallHooks } from '../../buffer/cuda/cuda-engine.ts';
import { CudaLayerEngine, type LayerEngineParts } from './cuda-layer-engine.ts';
import { loadLayerLaunches, makeLayerScratch } from './cuda-layer-launches.ts';

type Parts = Omit<LayerEngineParts, 'calls' | 'hooks'>;

/** Collective: compiles the kernels and takes their memory; every rank gets the same error if one cannot. */
export async function createCudaLayerEngine(
  context: DispatchCombineContext,
  options: LayerEngineOptions & CallWait,
): Promise<LayerEngine> {
  const { memory, config, group } = context;
  if (memory.kind !== 'cuda') throw new WeftlineError('WL_INTERNAL', 'This context lies in the memory of CPU ranks');
  const { device } = memory;
  const launches = await loadLayerLaunches(device, context, options).catch((error: unknown) => error as Error);
  const prepare = (): Parts => {
    if (launches instanceof Error) throw launches;
    const { set, made } = TensorSet.make(device, (tensors) => makeLayerScratch(tensors, context, launches.tileWords));
    const scratch = { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
    return { memory, launches, scratch, options };
  };
  const parts = await agreeOn(group, { what: 'EPAll2AllLayer kernels', config: {}, prepare, release }, options);
  const hooks: CallHooks = {};
  const calls = new CudaCalls(group, device, {
    findFailure: () => hooks.findFailure?.(),
    onGiveUp: () => hooks.network?.giveUp(),
  });
  try {
    const size = layerPinnedSize(config, group);
    const { maxTokensPerRank } = config;
    const of = { group, device, name: 'a2a', calls, maxTokensPerRank, isWide: isWideSum(config) };
    if (size !== undefined) hooks.network = await CudaHostNetwork.create({ ...options, ...of, size });
    return new CudaLayerEngine(context, { ...parts, calls, hooks });
  } catch (error) {
    calls[Symbol.dispose]();
    release(parts);
    throw error;
  }
}

function release({ scratch }: Parts): void {
  scratch[Symbol.dispose]();
}
