// weftline/reference: what calls compute, slow and obvious, to test engines and programs against, and how their memory is laid out.
export {
  referenceCombine,
  referenceCombineWeights,
  referenceDispatch,
  type ReferenceCombineInput,
  type ReferenceInput,
  type ReferenceReceived,
} from './ep-buffer.ts';
export type { ReferenceHosts } from './host-sums.ts';
export {
  referenceLayerCombine,
  referenceLayerDispatch,
  type ReferenceLayerInput,
  type ReferenceLayerReceived,
  referenceNodeLayout,
  type ReferenceNodeLayout,
  type ReferenceNodeOptions,
  referenceSkippedRows,
  type ReferenceSkippedRows,
} from './ep-layer.ts';
export {
  referenceLowLatencyCombine,
  type ReferenceLowLatencyCombineInput,
  referenceLowLatencyDispatch,
  type ReferenceLowLatencyInput,
  type ReferenceLowLatencyOptions,
  type ReferenceLowLatencyReceived,
  type ReferenceLowLatencyRow,
} from './low-latency.ts';
export { referenceReduction, referenceSparseSum } from './reductions.ts';
export type { EpRegion } from '../ep/buffer/buffer-size.ts';
export type { NetworkRegion, NetworkSize, SlotArray, SumRing } from '../ep/across-hosts/network-size.ts';
export type { OutputRegion } from '../ep/layer/output-size.ts';
export type { LowLatencyRegion, LowLatencySlots } from '../ep/low-latency/low-latency-size.ts';
