// Lays out the regions of a window from a table of their sizes; each mode has its own table.
import { REGION_ALIGNMENT } from '../abi/exchange-record.ts';
import { alignUp } from '../abi/layout.ts';

export interface WindowRegion {
  /** Distance from the beginning of each rank's part of the window. */
  readonly offset: number;
  readonly bytes: number;
}

/** A size in bytes, or the region whose memory this one is. */
type RegionSizes<Name extends string> = Readonly<Record<Name, number | Name>>;

export interface RegionLayout<Name extends string> {
  /** Bytes of one rank's part of the window. */
  readonly bytes: number;
  readonly regions: Readonly<Record<Name, WindowRegion>>;
}

/** Pure: the regions one after another in the order of the table, each on a boundary of REGION_ALIGNMENT. */
export function layOutRegions<Name extends string>(table: RegionSizes<Name>): RegionLayout<Name> {
  const regions = new Map<string, WindowRegion>();
  let end = 0;
  const entries = Object.entries<number | Name>(table);
  for (const [name, bytes] of entries) {
    if (typeof bytes === 'string') continue;
    regions.set(name, { offset: end, bytes });
    end = alignUp(end + bytes, REGION_ALIGNMENT);
  }
  const placed = entries.map(([name, of]) => [name, regions.get(typeof of === 'string' ? of : name)]);
  return { bytes: end, regions: Object.fromEntries(placed) as Record<Name, WindowRegion> };
}
