// A dispatch of a layer under way on a GPU, and what its kernels are told of it.
import { dtypes } from '../../../core/dtype.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { EpCallOptions } from '../../buffer/engine.ts';
import type { LayerInput } from '../layer-input.ts';
import type { CrossingTables } from '../layout-desc.ts';
import type { LayerLaunches } from './cuda-layer-launches.ts';

type ArgumentsOf<Name extends 'prepare' | 'place' | 'dispatch'> = LayerLaunches[Name]['arguments'];

/** What a dispatch writes for its descriptor. */
export interface NewTables {
  /** i32 [1, maxTokens, K] */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K] */
  readonly rankTable: Tensor<'i32'>;
  /** i32 [ranks] */
  readonly numInputTokens: Tensor<'i32'>;
  /** Of a group on several hosts. */
  readonly crossing: CrossingTables | undefined;
  /** i32 [experts of this rank]; of a dispatch with a bound on its rows. */
  readonly recvCounts: Tensor<'i32'> | undefined;
}

/** A dispatch under way. */
export interface Sending {
  readonly input: LayerInput;
  readonly tables: NewTables;
  /** Disposes the tables. */
  readonly set: Disposable;
  readonly stream: CudaStream;
  readonly options: EpCallOptions;
}

/** Also of a combine with the descriptor of the tables. */
export function setCrossing(
  set: { set(name: 'wayTable' | 'route' | 'forwardRows' | 'forwardRanks', value: number): void },
  { wayTable, route, forwardRows, forwardRanks }: CrossingTables,
): void {
  set.set('wayTable', wayTable.address);
  set.set('route', route.address);
  set.set('forwardRows', forwardRows.address);
  set.set('forwardRanks', forwardRanks.address);
}

export function setPrepare(set: ArgumentsOf<'prepare'>, { input, tables }: Sending): void {
  set.set('topk', input.expIndices.address);
  set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
  set.set('rowTable', tables.rowTable.address);
  set.set('rankTable', tables.rankTable.address);
  set.set('numInputTokens', tables.numInputTokens.address);
  set.set('recvCounts', tables.recvCounts?.address ?? 0);
  set.set('rowBound', input.rowBound);
  set.set('tokens', input.numTokens);
  set.set('weightBytes', input.weight ? dtypes[input.weight.dtype].bytes : 0);
  set.set('scattered', input.fullScatterIndices ? 1 : 0);
  set.set('wayTable', tables.crossing?.wayTable.address ?? 0);
  set.set('route', tables.crossing?.route.address ?? 0);
}

/** Of a dispatch whose caller chose the rows. */
export function setPlace(set: ArgumentsOf<'place'>, { input, tables }: Sending): void {
  const places = input.fullScatterIndices as Tensor<'i32' | 'i64'>;
  set.set('topk', input.expIndices.address);
  set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
  set.set('places', places.address);
  set.set('placeBytes', dtypes[places.dtype].bytes);
  set.set('rowTable', tables.rowTable.address);
  set.set('rankTable', tables.rankTable.address);
  set.set('tokens', input.numTokens);
}

export function setDispatch(set: ArgumentsOf<'dispatch'>, { input, tables }: Sending): void {
  set.set('x', input.input.address);
  set.set('topk', input.expIndices.address);
  set.set('indexBytes', dtypes[input.expIndices.dtype].bytes);
  set.set('weights', input.weight?.address ?? 0);
  set.set('weightBytes', input.weight ? dtypes[input.weight.dtype].bytes : 0);
  set.set('rowTable', tables.rowTable.address);
  set.set('rankTable', tables.rankTable.address);
  set.set('tokens', input.numTokens);
  set.set('rowBound', input.rowBound);
  set.set('placed', input.fullScatterIndices ? 1 : 0);
  if (tables.crossing) setCrossing(set, tables.crossing);
}
