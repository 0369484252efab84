// What calls of expert parallelism return, by type, for each form of their arguments. It is compiled, never run.
import type { Tensor } from 'weftline';
import type {
  DispatchArguments,
  DispatchHandle,
  DispatchResult,
  EPAll2AllLayer,
  EpBuffer,
  EpLowLatency,
  LayerDispatchArguments,
  LayerDispatchResult,
  LowLatencyDispatchArguments,
  LowLatencyDispatchResult,
  LowLatencyScaledRows,
  PendingDispatch,
  RowsLike,
  ScaledRows,
} from 'weftline/ep';

type IsSame<A, B> = [A, B] extends [B, A] ? true : false;

/** Takes a call whose result has exactly the type `Want`. */
function expectType<Want>() {
  return <Got>(_got: Promise<Got>, ..._same: IsSame<Got, Want> extends true ? [] : [never]): void => {};
}

interface Sent {
  readonly bf16: Tensor<'bf16'>;
  readonly scaled: ScaledRows;
  readonly ids: Tensor<'i32'>;
  readonly wideIds: Tensor<'i64'>;
  readonly weights: Tensor<'f32'>;
  readonly handle: DispatchHandle;
  readonly isSure: boolean;
}

export function bufferResults(buffer: EpBuffer, sent: Sent, args: DispatchArguments): void {
  const { bf16, scaled, ids, wideIds, weights, handle, isSure } = sent;
  expectType<DispatchResult<Tensor<'bf16'>, Tensor<'i32'>, Tensor<'f32'>>>()(
    buffer.dispatch({ x: bf16, topkIdx: ids, topkWeights: weights, timeoutMs: 1000 }),
  );
  expectType<DispatchResult<ScaledRows, Tensor<'i64'>>>()(buffer.dispatch({ x: scaled, topkIdx: wideIds }));
  expectType<DispatchResult<ScaledRows, undefined, undefined>>()(buffer.dispatch({ x: scaled, handle }));
  expectType<DispatchResult<RowsLike, Tensor<'i32'>>>()(
    buffer.dispatch({ x: isSure ? bf16 : scaled, topkIdx: ids, ...(isSure && { topkWeights: weights }) }),
  );
  expectType<DispatchResult>()(buffer.dispatch(args));
  // @ts-expect-error: there is no such argument.
  void buffer.dispatch({ x: bf16, topkIdx: ids, weights });
  // @ts-expect-error: rows are bf16, or fp8 with scales.
  void buffer.dispatch({ x: weights, topkIdx: ids });
}

export function lowLatencyResults(lowLatency: EpLowLatency, sent: Sent, args: LowLatencyDispatchArguments): void {
  const { bf16: x, ids: topkIdx, isSure } = sent;
  const scaled = lowLatency.dispatch({ x, topkIdx });
  expectType<LowLatencyDispatchResult<'fp8'>>()(scaled);
  expectType<LowLatencyScaledRows>()(scaled.then(({ recvX }) => recvX));
  expectType<LowLatencyDispatchResult<'fp8'>>()(lowLatency.dispatch({ x, topkIdx, scales: 'ue8m0' }));
  const plain = lowLatency.dispatch({ x, topkIdx, dtype: 'bf16' });
  expectType<LowLatencyDispatchResult<'bf16'>>()(plain);
  expectType<Tensor<'bf16'>>()(plain.then(({ recvX }) => recvX));
  expectType<PendingDispatch<'bf16'>>()(lowLatency.dispatch({ x, topkIdx, dtype: 'bf16', returnRecvHook: true }));
  expectType<LowLatencyDispatchResult>()(lowLatency.dispatch({ x, topkIdx, dtype: isSure ? 'bf16' : 'fp8' }));
  expectType<PendingDispatch | LowLatencyDispatchResult>()(lowLatency.dispatch(args));
  // @ts-expect-error: no such rows travel.
  void lowLatency.dispatch({ x, topkIdx, dtype: 'f32' });
}

export function layerResults(
  layer: EPAll2AllLayer,
  halves: EPAll2AllLayer<'f16'>,
  { sent, x, args }: { readonly sent: Sent; readonly x: Tensor<'f16'>; readonly args: LayerDispatchArguments },
): void {
  const { bf16, ids: topkIdx, weights } = sent;
  expectType<LayerDispatchResult<'bf16', Tensor<'f32'>>>()(layer.dispatch({ x: bf16, topkIdx, topkWeights: weights }));
  expectType<LayerDispatchResult<'f16', Tensor<'f32'>>>()(
    halves.dispatch({ input: x, expIndices: topkIdx, weight: weights }),
  );
  expectType<LayerDispatchResult<'f16'>>()(halves.dispatch({ x, topkIdx }));
  expectType<LayerDispatchResult>()(layer.dispatch(args));
}
