// Where the regions of an EpBuffer lie, as this process maps them.
import type { MemoryRange } from '../../device/host-access.ts';
import type { EpRegion } from './buffer-size.ts';

export interface EpMemory {
  /** What peers read and write here: inputs must not lie in it, but for the rows of combine. */
  readonly mapped: MemoryRange;
  /** Address of a region of any rank, as this process maps it. */
  regionAddress(rank: number, region: EpRegion): number;
}
