// The small tables that an EpBuffer's kernels work with, all allocated before the ranks agree that they can begin.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import { type AddressTables, makeAddressTables } from './address-table.ts';
import type { EpBufferConfig, EpBufferSize, EpRegion } from './buffer-size.ts';
import { type DispatchLayout, emptyLayout, type LayoutShape } from './dispatch-layout.ts';

export class EpTables implements Disposable {
  readonly shape: LayoutShape;
  /** The layout of the present dispatch, for callers who pass none. */
  readonly layout: DispatchLayout;
  /** Addresses of the regions at all ranks. */
  readonly bases: AddressTables<EpRegion>;
  /** i32 [ranks]: the next row of this source at each rank. */
  readonly nextRow: Tensor<'i32'>;
  /** i32 [ranks + 2]: addresses of the rows of one sum, biases included. */
  readonly sources: Tensor<'i32'>;

  constructor(device: CpuDevice, config: EpBufferConfig, { ranks, size }: { ranks: number; size: EpBufferSize }) {
    const experts = config.numExperts;
    this.shape = { ranks, experts, dropped: -1, name: 'topkIdx', scratch: device.empty('i32', [experts]) };
    this.layout = emptyLayout(device, config.maxTokensPerRank, this.shape);
    this.bases = makeAddressTables(device, Object.keys(size.regions) as EpRegion[], ranks);
    this.nextRow = device.empty('i32', [ranks]);
    this.sources = device.empty('i32', [ranks + 2]);
  }

  [Symbol.dispose](): void {
    this.shape.scratch.dispose();
    this.layout[Symbol.dispose]();
    for (const table of Object.values(this.bases)) table.dispose();
    this.nextRow.dispose();
    this.sources.dispose();
  }
}
