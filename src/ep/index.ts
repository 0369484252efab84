// weftline/ep: expert-parallel dispatch and combine.
export { bufferSize, type EpBufferConfig, type EpBufferSize } from './buffer/buffer-size.ts';
export type { CombinePrecision } from './across-hosts/network-size.ts';
export type { CombineArguments } from './buffer/call-arguments.ts';
export type { DispatchArguments, RowsLike } from './buffer/call-arguments.ts';
export type { ScaledRows } from '../device/tensor.ts';
export { dequantizeRows, type QuantizeOptions, quantizeRows } from '../device/cpu/fp8-rows.ts';
export { DispatchHandle } from './buffer/dispatch-handle.ts';
export type { DispatchLayout } from './buffer/dispatch-layout.ts';
export { EpBuffer } from './buffer/ep-buffer.ts';
export type { EpBufferOptions } from './buffer/buffer-size.ts';
export type { CombineResult, DispatchResult } from './buffer/engine.ts';
export type { CallOptions } from '../group/overlap.ts';
export { type ContextOptions, DispatchCombineContext, type OutputBuffers } from './layer/dispatch-combine-context.ts';
export { EPAll2AllLayer } from './layer/ep-all2all-layer.ts';
export type { TritonCombineArguments, TritonDispatchArguments, TritonLayerOptions } from './layer/triton-names.ts';
export type { LayerOptions } from './layer/ep-config.ts';
export type { LayerCombineResult, LayerDispatchResult } from './layer/layer-engine.ts';
export { EPConfig, type EPConfigOptions, type TokenDType } from './layer/ep-config.ts';
export type { LayerBarrierOptions, LayerCombineArguments, LayerDispatchArguments } from './layer/layer-arguments.ts';
export { EPAllToAllLayoutDesc, type OffsetTensor } from './layer/layout-desc.ts';
export type { DispatchSplits } from './layer/expert-plan.ts';
export { StagedDispatch } from './layer/layer-engine.ts';
export { type OutputSize, outputSize } from './layer/output-size.ts';
export {
  DeepEpConfig,
  deepEpConfig,
  type DeepEpConfigOptions,
  type DeepEpLowLatencySize,
  deepEpLowLatencySize,
  isDeepEpRankCount,
} from './buffer/deepep-sizes.ts';
export { EpLowLatency } from './low-latency/ep-low-latency.ts';
export { type ConnectOptions, LOW_LATENCY_NOTICE, type LowLatencyView } from './low-latency/low-latency-results.ts';
export { LowLatencyHandle } from './low-latency/low-latency-results.ts';
export type {
  LowLatencyCombineArguments,
  LowLatencyDispatchArguments,
  LowLatencyScales,
} from './low-latency/low-latency-arguments.ts';
export type {
  LowLatencyCombineResult,
  LowLatencyDispatchResult,
  LowLatencyRows,
  LowLatencyScaledRows,
  PendingCombine,
  PendingDispatch,
} from './low-latency/low-latency-results.ts';
export { type LowLatencyConfig, type LowLatencySize, lowLatencySize } from './low-latency/low-latency-size.ts';
