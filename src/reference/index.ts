// weftline/reference: what calls compute, slow and obvious, to test engines and programs against.
export { referenceCombine, referenceCombineWeights, referenceDispatch } from './ep-buffer.ts';
export {
  referenceLayerCombine,
  referenceLayerDispatch,
  referenceNodeLayout,
  referenceSkippedRows,
} from './ep-layer.ts';
export { referenceLowLatencyCombine, referenceLowLatencyDispatch } from './low-latency.ts';
export type { ReferenceInput } from './reference-input.ts';
export { referenceReduction, referenceSparseSum } from './reductions.ts';
