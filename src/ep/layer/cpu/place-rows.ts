// Row and rank of every choice of a layer dispatch, from prefix sums.
import { dtypes } from '../../../core/dtype.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { RoutedTokens } from '../../across-hosts/routed-tokens.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { EPConfig } from '../ep-config.ts';
import type { ExpertPlan } from '../expert-plan.ts';
import type { LayerInput } from '../layer-input.ts';
import type { LayerTables } from '../layer-tables.ts';
import { type LayerRows, layerRows } from './count-layer-rows.ts';

export interface PlaceTables {
  /** i32 [1, maxTokens, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  readonly sentRows: LayerRows;
  /** On several hosts, once it is known. */
  routed?: RoutedTokens;
}

export interface PlaceRowsOptions {
  readonly input: LayerInput;
  readonly plan: ExpertPlan;
  /** Of the layer. */
  readonly context: { readonly config: EPConfig; readonly group: RankGroup };
}

/** Fails with WL_MEMORY. */
export function placeRows(
  device: CpuDevice,
  { nextRow, layout }: LayerTables,
  { input: { expIndices, numTokens }, plan, context: { config, group } }: PlaceRowsOptions,
): PlaceTables {
  const { topk, maxTokens, numExperts, numExpertsPerRank } = config;
  const rowTable = device.empty('i32', [1, maxTokens, topk]);
  const rankTable = device.empty('i32', [numTokens, topk]);
  rowTable.view().fill(-1, numTokens * topk);
  nextRow.view().set(plan.firstRow);
  device.kernels.expandedRows(
    expIndices.address,
    dtypes[expIndices.dtype].bytes,
    numTokens,
    topk,
    numExperts,
    numExpertsPerRank,
    nextRow.address,
    rowTable.address,
    rankTable.address,
  );
  return { rowTable, rankTable, sentRows: layerRows(group, layout) };
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
