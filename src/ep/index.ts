// weftline/ep: expert-parallel dispatch and combine.
export { bufferSize, type EpBufferConfig, type EpBufferSize, type EpRegion } from './buffer-size.ts';
export type { CombineArguments } from './combine-arguments.ts';
export type { DispatchArguments, RowsLike } from './dispatch-arguments.ts';
export type { ScaledRows } from '../device/scaled-rows.ts';
export { dequantizeRows, type QuantizeOptions, quantizeRows } from '../device/cpu/fp8-rows.ts';
export { DispatchHandle } from './dispatch-handle.ts';
export type { DispatchLayout } from './dispatch-layout.ts';
export { EpBuffer } from './ep-buffer.ts';
export type { CombineResult, DispatchResult } from './ep-results.ts';
export type { OverlapOptions } from './overlap.ts';
export { type ContextOptions, DispatchCombineContext, type OutputBuffers } from './all2all/dispatch-combine-context.ts';
export { EPAll2AllLayer, type LayerOptions } from './all2all/ep-all2all-layer.ts';
export type { LayerCombineResult, LayerDispatchResult } from './all2all/layer-engine.ts';
export { EPConfig, type EPConfigOptions } from './all2all/ep-config.ts';
export type { LayerCombineArguments, LayerDispatchArguments } from './all2all/layer-arguments.ts';
export { EPAllToAllLayoutDesc } from './all2all/layout-desc.ts';
export { type OutputRegion, type OutputSize, outputSize } from './all2all/output-size.ts';
export {
  type DeepEpConfig,
  deepEpConfig,
  type DeepEpLowLatencySize,
  deepEpLowLatencySize,
  deepEpNvlBytes,
  deepEpRdmaBytes,
} from './deepep-sizes.ts';
export {
  referenceCombine,
  referenceCombineWeights,
  referenceDispatch,
  type ReferenceCombineInput,
  type ReferenceInput,
  type ReferenceReceived,
} from './reference.ts';
export {
  referenceLayerCombine,
  referenceLayerDispatch,
  type ReferenceLayerInput,
  type ReferenceLayerReceived,
} from './all2all/reference-layer.ts';
