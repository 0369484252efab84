// The small tables that a layer's kernels work with, all allocated before the ranks agree that they can begin.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type DispatchLayout, emptyLayout, type LayoutShape } from '../dispatch-layout.ts';
import type { EPConfig } from './ep-config.ts';

export class LayerTables implements Disposable {
  readonly shape: LayoutShape;
  readonly layout: DispatchLayout;
  /** i32 [experts]: the next row of (expert, this source) at the expert's rank. */
  readonly nextRow: Tensor<'i32'>;
  /** i32 [topk]: addresses of the rows of one sum. */
  readonly sources: Tensor<'i32'>;

  constructor(device: CpuDevice, { maxTokens, topk, numExperts, worldSize }: EPConfig) {
    const scratch = device.empty('i32', [numExperts]);
    this.shape = { ranks: worldSize, experts: numExperts, dropped: numExperts, name: 'expIndices', scratch };
    this.layout = emptyLayout(device, maxTokens, this.shape);
    this.nextRow = device.empty('i32', [numExperts]);
    this.sources = device.empty('i32', [topk]);
  }

  [Symbol.dispose](): void {
    this.shape.scratch.dispose();
    this.layout[Symbol.dispose]();
    this.nextRow.dispose();
    this.sources.dispose();
  }
}
