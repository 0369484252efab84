// Row and rank of every choice of a layer dispatch, from prefix sums.
import { dtypes } from '../../../core/dtype.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Device, TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { RoutedTokens } from '../../across-hosts/routed-tokens.ts';
import { type LayerRows, layerRows } from '../../buffer/count-rows.ts';
import { emptyLayout, type LayoutShape, type LayoutTensors } from '../../buffer/dispatch-layout.ts';
import type { EPConfig } from '../ep-config.ts';
import type { ExpertPlan } from '../expert-plan.ts';
import type { LayerInput } from '../layer-arguments.ts';

export interface PlaceTables {
  /** i32 [1, maxTokensPerRank, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [ranks] and, with a bound on the rows, i32 [experts of this rank]; filled in when the rows have come. */
  readonly numInputTokens: Tensor<'i32'>;
  readonly recvCounts: Tensor<'i32'> | undefined;
  /** Owns the tables above, which are views. */
  readonly set: Disposable;
  readonly sentRows: LayerRows;
  /** On several hosts, once it is known. */
  routed?: RoutedTokens;
}

interface PlaceRowsOptions {
  readonly input: LayerInput;
  readonly plan: ExpertPlan;
  /** Of the layer. */
  readonly context: { readonly config: EPConfig; readonly group: RankGroup };
}

/** Fails with WL_MEMORY. */
export function placeRows(
  device: CpuDevice,
  { nextRow, layout }: LayerTables,
  { input: { topkIdx, numTokens, rowBound }, plan, context: { config, group } }: PlaceRowsOptions,
): PlaceTables {
  const { maxTopk: topk, maxTokensPerRank, numExperts, numExpertsPerRank } = config;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    rowTable: tensors.empty('i32', [1, maxTokensPerRank, topk]),
    rankTable: tensors.empty('i32', [numTokens, topk]),
    numInputTokens: tensors.empty('i32', [group.size]),
    recvCounts: rowBound === 0 ? undefined : tensors.empty('i32', [numExpertsPerRank]),
  }));
  const { rowTable, rankTable } = made;
  rowTable.view().fill(-1, numTokens * topk);
  nextRow.view().set(plan.firstRow);
  device.kernels.expandedRows(
    topkIdx.address,
    dtypes[topkIdx.dtype].bytes,
    numTokens,
    topk,
    numExperts,
    numExpertsPerRank,
    nextRow.address,
    rowTable.address,
    rankTable.address,
  );
  return { ...made, set, sentRows: layerRows(group, layout) };
}

/** Of a result with a bound on its rows: those behind the received ones stand for nothing. */
export function markTail(
  tables: {
    /** [rows] */
    readonly firstRows: Tensor<'i32'>;
    /** [rows, K] */
    readonly duplicates: Tensor<'i32'>;
    /** [rows] */
    readonly weights: Tensor<'f32' | 'bf16'> | undefined;
  },
  received: number,
): void {
  const { firstRows, duplicates, weights } = tables;
  firstRows.view().fill(-1, received);
  duplicates.view().fill(-1, received * duplicates.shape[1]!);
  weights?.view().fill(0, received);
}

// The small tables that a layer's kernels work with, all allocated before the ranks agree that they can begin.

export interface LayerTables extends Disposable {
  readonly shape: LayoutShape;
  readonly layout: LayoutTensors;
  /** i32 [experts]: the next row of (expert, this source) at the expert's rank. */
  readonly nextRow: Tensor<'i32'>;
  /** i32 [topk]: addresses of the rows of one sum. */
  readonly sources: Tensor<'i32'>;
}

export function makeLayerTables(
  device: Device,
  { maxTokensPerRank, maxTopk: topk, numExperts, worldSize }: EPConfig,
): LayerTables {
  const { set, made } = TensorSet.make(device, (tensors) => {
    const shape: LayoutShape = { ranks: worldSize, experts: numExperts, dropped: numExperts, name: 'topkIdx' };
    return {
      shape,
      layout: emptyLayout(tensors, maxTokensPerRank, shape),
      nextRow: tensors.empty('i32', [numExperts]),
      sources: tensors.empty('i32', [topk]),
    };
  });
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
