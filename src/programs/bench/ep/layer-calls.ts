// One EPAll2AllLayer under test and its two calls, whatever the device.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { EPAll2AllLayer, type EPAllToAllLayoutDesc } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';
import { countPairs, countRows, type RowCounts } from './ep-traffic.ts';
import type { EpWorkload } from './ep-workload.ts';

export interface LayerInputs {
  readonly world: World;
  readonly device: CpuDevice | CudaDevice;
  readonly workload: EpWorkload;
  readonly input: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'f32'>;
  /** bf16 [T, H]: what combine returns. */
  readonly out: Tensor<'bf16'>;
}

export interface LayerCalls extends AsyncDisposable {
  readonly layer: EPAll2AllLayer;
  /** Rows are bf16, one per (token, expert). */
  readonly pairs: RowCounts;
  /** Of the newest dispatch. */
  readonly descriptor: () => EPAllToAllLayoutDesc;
  /** Disposes the descriptors of all dispatches but the newest. */
  readonly tidy: () => void;
  readonly dispatch: () => Promise<void>;
  /** Of rows that lie in the window (combineInput). */
  readonly combine: () => Promise<void>;
}

/** Collective. Makes the layer, and dispatches once. */
export async function makeLayerCalls(
  { world, device, workload, input, topkIdx, topkWeights, out }: LayerInputs,
  options: { readonly numSm?: number; readonly enableLocalCombine?: boolean } = {},
): Promise<LayerCalls> {
  const { tokens, hidden, topk, experts } = workload;
  const choices = await topkIdx.toHost();
  const pairs = await world.allGather('bench-pairs', countPairs(choices, experts / world.size, world.size));
  const received = pairs.map((_, rank) => pairs.reduce((sum, row) => sum + (row[rank] as number), 0));
  const layer = await EPAll2AllLayer.create(world, device, {
    ...options,
    maxTokens: tokens,
    hidden,
    topk,
    numTotExperts: experts,
    // Just what this routing needs, so that the output never grows while it is timed.
    capacity: (Math.max(...received) + 1) / (tokens * topk),
  });
  const descriptors: EPAllToAllLayoutDesc[] = [];
  const descriptor = (): EPAllToAllLayoutDesc => descriptors[0] as EPAllToAllLayoutDesc;
  const dispatch = async (): Promise<void> => {
    const { layoutDesc } = await layer.dispatch({ input, expIndices: topkIdx, weight: topkWeights });
    descriptors.unshift(layoutDesc);
  };
  await dispatch();
  return {
    layer,
    pairs: countRows(pairs),
    descriptor,
    tidy: () => {
      for (const old of descriptors.splice(1)) old.dispose();
    },
    dispatch,
    combine: async () => {
      const layoutDesc = descriptor();
      await layer.combine({ input: layer.combineInput(layoutDesc), layoutDesc, out });
    },
    [Symbol.asyncDispose]: () => layer.finalize(),
  };
}
