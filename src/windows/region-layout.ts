// Lays out the regions of a window from a table of their sizes; each mode has its own table.
import { REGION_ALIGNMENT } from '../abi/exchange-record.ts';
import { alignUp } from '../abi/layout.ts';
import type { DType } from '../core/dtype.ts';
import { WeftlineError } from '../core/errors.ts';
import { type Storage, Tensor } from '../device/tensor.ts';

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

interface MappedWindow {
  readonly storage: Storage;
  /** Start of each rank's part, by scale-up index, as this process maps it. */
  readonly addresses: readonly number[];
  /** This rank's scale-up index. */
  readonly index: number;
}

/** The regions of a window as this process maps them. */
export class PlacedRegions<Name extends string> {
  readonly storage: Storage;
  readonly #window: MappedWindow;
  readonly #regions: Readonly<Record<Name, WindowRegion>>;
  readonly #skipped: number;

  /** `skipped`: bytes of a rank's part in front of the regions. */
  constructor(window: MappedWindow, regions: Readonly<Record<Name, WindowRegion>>, skipped = 0) {
    this.storage = window.storage;
    this.#window = window;
    this.#regions = regions;
    this.#skipped = skipped;
  }

  /** Address of this rank's region, or of that of the rank of another scale-up index. */
  address(name: Name, index: number = this.#window.index): number {
    return this.#window.addresses[index]! + this.#skipped + this.#regions[name].offset;
  }

  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, name: Name, shape: readonly number[]): Tensor<D> {
    const tensor = new Tensor(this.storage, dtype, shape, this.address(name) - this.storage.address);
    const { bytes } = this.#regions[name];
    if (tensor.bytes <= bytes) return tensor;
    throw new WeftlineError('WL_INTERNAL', `A ${dtype} [${shape.join(', ')}] exceeds the ${bytes} bytes of ${name}`);
  }
}
