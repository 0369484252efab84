// weftline/ep: expert-parallel dispatch and combine.
export { bufferSize, type EpBufferConfig } from './buffer/buffer-size.ts';
export type { CombineArguments, DispatchArguments, RowsLike } from './buffer/call-arguments.ts';
export type { ScaledRows } from '../device/tensor.ts';
export { dequantizeRows, quantizeRows } from '../device/cpu/fp8-rows.ts';
export { DispatchHandle } from './buffer/dispatch-handle.ts';
export type { DispatchLayout } from './buffer/dispatch-layout.ts';
export { EpBuffer } from './buffer/ep-buffer.ts';
export type { CombineResult, DispatchResult } from './buffer/call-arguments.ts';
export { DeepEpConfig } from './buffer/deepep-sizes.ts';
export type { CallOptions } from '../group/overlap.ts';
export type { ShrinkOptions } from '../group/shrink.ts';
export type { MemorySize } from './memory-size.ts';
export { DispatchCombineContext } from './layer/dispatch-combine-context.ts';
export { EPAll2AllLayer } from './layer/ep-all2all-layer.ts';
export { EPConfig, type LayerOptions, type TokenDType } from './layer/ep-config.ts';
export type { LayerCombineResult, LayerDispatchResult } from './layer/layer-engine.ts';
export type { LayerCombineArguments, LayerDispatchArguments } from './layer/layer-arguments.ts';
export { EPAllToAllLayoutDesc } from './layer/layout-desc.ts';
export { StagedDispatch } from './layer/layer-engine.ts';
export { outputSize } from './layer/output-size.ts';
export { EpLowLatency } from './low-latency/ep-low-latency.ts';
export { LowLatencyHandle } from './low-latency/low-latency-results.ts';
export type { LowLatencyCombineArguments, LowLatencyDispatchArguments } from './low-latency/low-latency-arguments.ts';
export type {
  LowLatencyCombineResult,
  LowLatencyDispatchResult,
  LowLatencyRows,
  LowLatencyScaledRows,
  PendingCombine,
  PendingDispatch,
} from './low-latency/low-latency-results.ts';
export { type LowLatencyConfig, lowLatencySize } from './low-latency/low-latency-size.ts';
