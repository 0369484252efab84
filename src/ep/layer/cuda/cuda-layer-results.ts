// What a layer's dispatch on a GPU returns, once its kernels are enqueued; and why some calls cannot be made there.
import { WeftlineError } from '../../../core/errors.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { DispatchCombineContext } from '../dispatch-combine-context.ts';
import type { TokenDType } from '../ep-config.ts';
import type { LayerDispatchResult } from '../layer-engine.ts';
import { makeLayoutDesc } from '../make-layout-desc.ts';
import type { Sending } from './cuda-layer-inputs.ts';
import type { LayerLaunches } from './cuda-layer-launches.ts';
import type { CudaLayerMemory } from './cuda-layer-memory.ts';
import type { CudaLayerPlan } from './cuda-layer-plan.ts';
import { copyTable, widenTable } from './cuda-tables.ts';

/** What has dispatched. */
interface Dispatcher {
  readonly context: DispatchCombineContext;
  readonly memory: CudaLayerMemory;
  readonly enableLocalCombine: boolean;
}

/** What its kernels tell. */
interface Told {
  /** Of a dispatch without a bound, when the host has waited for it. */
  readonly hostPlan: CudaLayerPlan;
  /** LayerPlan, in device memory. */
  readonly plan: Tensor<'u8'>;
  readonly sequence: number;
  readonly widen: LayerLaunches['widen'];
}

/** Tables that the descriptor needs beyond the next dispatch are copied in the order of the stream. */
export function layerResults(
  { context, memory, enableLocalCombine }: Dispatcher,
  { input, tables, set, stream }: Sending,
  { hostPlan, plan, sequence, widen }: Told,
): Omit<LayerDispatchResult<TokenDType>, 'event'> {
  const { config } = context;
  const { device } = memory;
  const { rowBound } = input;
  const isBounded = rowBound !== 0;
  const numRecvTokens = isBounded ? rowBound : hostPlan.recvRows[config.rank]!;
  const layoutDesc = makeLayoutDesc(
    {
      ...tables,
      set,
      owner: context,
      sequence,
      input,
      numRecvTokens,
      numRecvTokensPerExpert: isBounded ? [] : hostPlan.perExpert,
      firstRows: memory.view('i32', 'firstRow', [numRecvTokens]),
      duplicates: memory.view('i32', 'duplicates', [numRecvTokens, config.topk]),
      // A repeated token has two rows at least.
      repeated: memory.view('i32', 'repeated', [isBounded ? Math.floor(rowBound / 2) : hostPlan.repeated]),
      plan: isBounded ? plan : undefined,
    },
    {
      localCombine: enableLocalCombine,
      offsetDtype: config.offsetDtype,
      copy: (table) => copyTable(device, table, stream),
      widen: (table) => widenTable(device, table, { widen, stream }),
    },
  );
  return {
    output: memory.view(config.tokenDtype, 'rows', [numRecvTokens, config.hidden]),
    weights: input.weight && memory.view(config.weightDtype, 'weights', [numRecvTokens]),
    layoutDesc,
  };
}

export function outgrown(): WeftlineError {
  return new WeftlineError(
    'WL_CLOSED',
    'Cannot launch the graph: the output of its layer has been replaced by a larger one since; record it again',
  );
}

export function notPlaced(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'fullScatterIndices of ranks on several hosts is not built for GPUs: leave it out, or make a group per host',
  );
}
