// weftline/ep: expert-parallel dispatch and combine.
export { bufferSize, type EpBufferConfig, type EpBufferSize, type EpRegion } from './buffer-size.ts';
export type { CombineArguments } from './combine-arguments.ts';
export type { DispatchArguments, RowsLike, ScaledRows } from './dispatch-arguments.ts';
export { DispatchHandle } from './dispatch-handle.ts';
export type { DispatchLayout } from './dispatch-layout.ts';
export { type CombineResult, type DispatchResult, EpBuffer } from './ep-buffer.ts';
