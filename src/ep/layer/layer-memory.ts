// What a DispatchCombineContext asks of its symmetric memory; one implementation per kind of device.
import type { CallWait } from '../../core/deadline.ts';
import type { DType } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { MemoryRange, Tensor } from '../../device/tensor.ts';
import type { OutputRegion, OutputSize } from './output-size.ts';

export interface LayerMemory {
  /** Sizes of the present output; fails with WL_CLOSED when there is none. */
  readonly size: OutputSize;
  /** What peers read and write of the output here; inputs must not lie in it. */
  readonly mapped: MemoryRange;
  /** Bytes of this rank's windows. */
  readonly windowBytes: number;
  /** Collective: replaces the output by one of that many rows. When it fails, on all ranks alike, there is none. */
  allocate(rows: number, wait: CallWait): Promise<void>;
  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: OutputRegion, shape: readonly number[]): Tensor<D>;
  /** Address of this rank's region, or of that of the rank of another scale-up index, as this process maps it. */
  regionAddress(region: OutputRegion, index?: number): number;
  /** Releases all of it here. Not collective; idempotent. */
  close(): Promise<void>;
}

/** What using memory without an output fails with. */
export function noOutput(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'This DispatchCombineContext was finalized, or could not be reallocated');
}
