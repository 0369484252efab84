// The descriptor of a layer dispatch from its tables, whatever the device.
import type { DType } from '../../core/dtype.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { RoutedTokens } from '../across-hosts/routed-tokens.ts';
import type { LayerRows } from '../buffer/count-rows.ts';
import { type CrossingTables, EPAllToAllLayoutDesc, type HostLayout, type OffsetTensor } from './layout-desc.ts';
import type { LayerInput } from './layer-arguments.ts';

interface DispatchTables {
  readonly owner: object;
  readonly sequence: number;
  readonly input: LayerInput;
  /** The descriptor's from now on: what owns the tables that were made for it, which are views. */
  readonly set: Disposable;
  /** i32 [1, maxTokensPerRank, K], [T, K] and [ranks]. */
  readonly rowTable: Tensor<'i32'>;
  readonly rankTable: Tensor<'i32'>;
  readonly numInputTokens: Tensor<'i32'>;
  readonly numRecvTokens: number;
  readonly numRecvTokensPerExpert: readonly number[];
  /** i32 [experts of this rank]; only with a bound on the rows. */
  readonly recvCounts: Tensor<'i32'> | undefined;
  /** i32 [recv], [recv, K] and [n] in the window, where the next dispatch overwrites them. */
  readonly firstRows: Tensor<'i32'>;
  readonly duplicates: Tensor<'i32'>;
  readonly repeated: Tensor<'i32'> | undefined;
  /** LayerPlan, where only the device knows how many of `repeated` count. */
  readonly plan?: Tensor<'u8'> | undefined;
  /** The descriptor's from now on. */
  readonly routed?: RoutedTokens | undefined;
  readonly hostLayout?: HostLayout | undefined;
  readonly crossing?: CrossingTables | undefined;
  readonly sentRows?: LayerRows | undefined;
}

/** How a device makes tables of its own from others. */
interface TableCopies {
  /** Combine needs the tables in the window, and may come after the next dispatch. */
  readonly localCombine: boolean;
  readonly offsetDtype: 'i32' | 'i64';
  copy<D extends 'i32' | 'u8'>(table: Tensor<D>): Tensor<D>;
  widen(table: Tensor<'i32'>): Tensor<'i64'>;
}

export function makeLayoutDesc(tables: DispatchTables, copies: TableCopies): EPAllToAllLayoutDesc {
  const {
    owner,
    sequence,
    input,
    set,
    rowTable,
    rankTable,
    numInputTokens,
    recvCounts,
    repeated,
    plan,
    routed,
    hostLayout,
    crossing,
    sentRows,
    ...parts
  } = tables;
  const owned: Disposable[] = [set];
  if (routed) owned.push(routed);
  if (hostLayout) owned.push(hostLayout);
  // What callers see of a descriptor are views, so that only the descriptor frees its tables.
  const keep = <D extends DType>(tensor: Tensor<D>): Tensor<D> => {
    owned.push(tensor);
    return tensor.reshape(tensor.shape);
  };
  const kept = <D extends 'i32' | 'u8'>(table: Tensor<D> | undefined): Tensor<D> | undefined =>
    copies.localCombine && table !== undefined ? keep(copies.copy(table)) : undefined;
  const offsets = (table: Tensor<'i32'>): OffsetTensor =>
    copies.offsetDtype === 'i32' ? table : keep(copies.widen(table));
  const firstRows = kept(parts.firstRows);
  const duplicates = kept(parts.duplicates);
  const repeatedRows = kept(repeated);
  const keptPlan = kept(plan);
  return new EPAllToAllLayoutDesc(
    {
      numDispatchTokenCurRank: input.numTokens,
      numInputTokensPerRank: offsets(numInputTokens),
      topkIndicesTensor: input.topkIdx,
      // On several hosts the descriptor tells it by node.
      tokenDstScatterIdx: hostLayout ? rowTable : offsets(rowTable),
      skippedTokenMappingIndices: offsets(firstRows ?? parts.firstRows),
      skippedTokenTopkMappingIndices: offsets(duplicates ?? parts.duplicates),
      numRecvTokens: parts.numRecvTokens,
      numRecvTokensPerExpert: parts.numRecvTokensPerExpert,
      recvCounts,
    },
    {
      owner,
      sequence,
      rowTable,
      rankTable,
      duplicates,
      repeatedRows,
      plan: keptPlan,
      routed,
      hostLayout,
      crossing,
      sentRows,
      owned,
    },
  );
}
