// The small tables that a layer's kernels work with, all allocated before the ranks agree that they can begin.
import type { Device } from '../../device/device.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';
import { emptyLayout, type LayoutShape, type LayoutTensors } from '../buffer/dispatch-layout.ts';
import type { EPConfig } from './ep-config.ts';

export interface LayerTables extends Disposable {
  readonly shape: LayoutShape;
  readonly layout: LayoutTensors;
  /** i32 [experts]: the next row of (expert, this source) at the expert's rank. */
  readonly nextRow: Tensor<'i32'>;
  /** i32 [topk]: addresses of the rows of one sum. */
  readonly sources: Tensor<'i32'>;
}

export function makeLayerTables(
  device: Device,
  { maxTokensPerRank, maxTopk: topk, numExperts, worldSize }: EPConfig,
): LayerTables {
  const { set, made } = TensorSet.make(device, (tensors) => {
    const shape: LayoutShape = { ranks: worldSize, experts: numExperts, dropped: numExperts, name: 'topkIdx' };
    return {
      shape,
      layout: emptyLayout(tensors, maxTokensPerRank, shape),
      nextRow: tensors.empty('i32', [numExperts]),
      sources: tensors.empty('i32', [topk]),
    };
  });
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
