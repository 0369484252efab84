// The cases of the expert-parallel bench over one EPAll2AllLayer.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import { EPAll2AllLayer, type EPAllToAllLayoutDesc } from '../ep/index.ts';
import type { World } from '../world/index.ts';
import { checkCopyBack, copyBack } from './copy-back.ts';
import type { EpCase } from './ep-cases.ts';
import { countPairs, countRows } from './ep-traffic.ts';
import { combineRowBytes, type EpWorkload } from './ep-workload.ts';
import type { BenchGroup } from './interleaved.ts';

export interface LayerInputs {
  readonly group: BenchGroup;
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
  const { group, world, device, workload, input, topkIdx, topkWeights } = inputs;
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
  const back = copyBack({ device, ...rowsInWindows(layer, descriptors[0] as EPAllToAllLayoutDesc), out });
  await checkCopyBack(group, { sent: input, out }, async () => void descriptors.unshift(await dispatch()), back);
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
      name: 'layer copy back',
      description: 'each row copied once from where the layer combines it, over the other rows of its token',
      ...traffic,
      run: back,
    },
    {
      name: 'layer combine',
      description: 'EPAll2AllLayer.combine of rows that were written into the window (combineInput)',
      ...traffic,
      copyBack: 'layer copy back',
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

/** Where combine finds the rows of this rank's tokens; stays true, for neither routing nor windows change. */
function rowsInWindows(
  layer: EPAll2AllLayer,
  { tokenDstScatterIdx, tokenDstRank }: EPAllToAllLayoutDesc,
): { readonly sources: Uint32Array; readonly tokens: Int32Array } {
  const { topk } = layer.config;
  const places = tokenDstScatterIdx.view();
  const ranks = tokenDstRank.view();
  const cells = [...ranks.keys()].filter((cell) => (ranks[cell] as number) >= 0);
  const address = (cell: number): number => layer.context.peerRowAddress(ranks[cell] as number, places[cell] as number);
  return {
    sources: Uint32Array.from(cells, address),
    tokens: Int32Array.from(cells, (cell) => Math.floor(cell / topk)),
  };
}
