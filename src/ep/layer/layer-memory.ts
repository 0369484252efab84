// The symmetric memory of a DispatchCombineContext: what is the same for every kind of device.
import type { CallWait } from '../../core/deadline.ts';
import type { DType } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { MemoryRange, Tensor } from '../../device/tensor.ts';
import type { PlacedRegions } from '../../windows/region-layout.ts';
import type { OutputRegion, OutputSize } from './output-size.ts';

interface LayerOutput {
  readonly size: OutputSize;
  readonly regions: PlacedRegions<OutputRegion>;
}

export abstract class LayerMemory<Output extends LayerOutput> {
  protected output: Output | undefined;

  /** Bytes of this rank's windows. */
  abstract readonly windowBytes: number;
  /** Collective: replaces the output by one of that many rows. When it fails, on all ranks alike, there is none. */
  abstract allocate(rows: number, wait: CallWait): Promise<void>;
  /** Releases all of it here. Not collective; idempotent. */
  abstract close(): Promise<void>;

  /** Sizes of the present output; fails with WL_CLOSED when there is none, as the others do. */
  get size(): OutputSize {
    return this.present().size;
  }

  /** What peers read and write of the output here; inputs must not lie in it. */
  get mapped(): MemoryRange {
    return this.present().regions.storage;
  }

  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: OutputRegion, shape: readonly number[]): Tensor<D> {
    return this.present().regions.view(dtype, region, shape);
  }

  /** Address of this rank's region, or of that of the rank of another scale-up index, as this process maps it. */
  regionAddress(region: OutputRegion, index?: number): number {
    return this.present().regions.address(region, index);
  }

  protected present(): Output {
    if (this.output !== undefined) return this.output;
    throw new WeftlineError('WL_CLOSED', 'This DispatchCombineContext was finalized, or could not be reallocated');
  }
}
