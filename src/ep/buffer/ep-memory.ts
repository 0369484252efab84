// Where the regions of an EpBuffer lie, as this process maps them.
import type { MemoryRange } from '../../device/tensor.ts';
import type { EpRegion } from './buffer-size.ts';

export interface EpMemory {
  /** What peers read and write here: inputs must not lie in it, but for the rows of combine. */
  readonly mapped: MemoryRange;
  /** Address of this rank's region, or of that of the rank of another scale-up index, as this process maps it. */
  regionAddress(region: EpRegion, index?: number): number;
}
