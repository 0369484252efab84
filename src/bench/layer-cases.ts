// The cases of the expert-parallel bench over one EPAll2AllLayer.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import { EPAll2AllLayer, type EPAllToAllLayoutDesc } from '../ep/index.ts';
import type { World } from '../world/index.ts';
import type { EpCase } from './ep-cases.ts';
import { countPairs, countRows } from './ep-traffic.ts';
import { combineRowBytes, type EpWorkload } from './ep-workload.ts';

export interface LayerInputs {
  readonly world: World;
  readonly device: CpuDevice;
  readonly workload: EpWorkload;
  readonly input: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
}

export interface LayerCases extends AsyncDisposable {
  readonly cases: readonly EpCase[];
  readonly windowsBytes: number;
}

/** Collective. Rows are always bf16, one per (token, expert). */
export async function makeLayerCases(inputs: LayerInputs): Promise<LayerCases> {
  const { world, device, workload, input, topkIdx, topkWeights } = inputs;
  const { tokens, hidden, topk, experts } = workload;
  const pairs = await world.allGather('bench-pairs', countPairs(topkIdx.view(), experts / world.size, world.size));
  const received = pairs.map((_, rank) => pairs.reduce((sum, row) => sum + (row[rank] as number), 0));
  const layer = await EPAll2AllLayer.create(world, device, {
    maxTokens: tokens,
    hidden,
    topk,
    numTotExperts: experts,
    // Just what this routing needs, so that the output never grows while it is timed.
    capacity: (Math.max(...received) + 1) / (tokens * topk),
  });
  const out = device.empty('bf16', [tokens, hidden]);
  const traffic = { rows: countRows(pairs), rowBytes: combineRowBytes(workload) };
  const dispatch = async (): Promise<EPAllToAllLayoutDesc> =>
    (await layer.dispatch({ input, expIndices: topkIdx, weight: topkWeights })).layoutDesc;
  const descriptors = [await dispatch()];
  const cases: EpCase[] = [
    {
      name: 'layer dispatch',
      description: 'EPAll2AllLayer.dispatch with weights: one row per (token, expert), grouped by expert',
      ...traffic,
      prepare: () => {
        for (const old of descriptors.splice(1)) old.dispose();
      },
      run: async () => void descriptors.unshift(await dispatch()),
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that were written into the window (combineInput)',
      ...traffic,
      run: async () => {
        const layoutDesc = descriptors[0] as EPAllToAllLayoutDesc;
        await layer.combine({ input: layer.combineInput(layoutDesc), layoutDesc, out });
      },
    },
  ];
  return {
    cases,
    windowsBytes: layer.context.outputSize.addressSpaceBytes,
    [Symbol.asyncDispose]: () => layer.finalize(),
  };
}
