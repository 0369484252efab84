// The regions whose memory a device reads: their keys, and which queue pairs have packets under way from each.
import type { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';
import { MemoryRegion } from '../../../native/verbs/memory-region.ts';
import type { Region } from '../../engine/region.ts';
import type { PathEnd } from './path-end.ts';
import { isReading, type Reader } from './region-readers.ts';

/** A region as one device knows it. */
export class RegionUse {
  readonly registered: MemoryRegion;
  /** By number of an end: its sequence behind the last packet that it was given from the region. */
  readonly #marks: (number | undefined)[] = [];

  constructor(registered: MemoryRegion) {
    this.registered = registered;
  }

  /** Hot path. The last packets that were given to the end are of this region. */
  mark(end: PathEnd): void {
    this.#marks[end.number] = end.nextSequence;
  }

  /** Those of the ends that read the region. */
  readersAmong(ends: readonly PathEnd[]): Reader[] {
    const known = ends.flatMap((end) => {
      const mark = this.#marks[end.number];
      return mark === undefined ? [] : [{ end, mark }];
    });
    return known.filter(isReading);
  }

  /** The end is closed, and its number may soon be another's. */
  forget(end: PathEnd): void {
    if (end.number < this.#marks.length) this.#marks[end.number] = undefined;
  }
}

export class RegionKeys {
  readonly #domain: ProtectionDomain;
  readonly #relaxedOrdering: boolean;
  readonly #uses = new Map<Region, RegionUse>();

  constructor(domain: ProtectionDomain, relaxedOrdering: boolean) {
    this.#domain = domain;
    this.#relaxedOrdering = relaxedOrdering;
  }

  /** Fails with WL_CAPACITY. Memory without a native address is not registered: its packets are copied. */
  add(region: Region): void {
    const { address, bytes } = region;
    if (address === 0 || bytes.length === 0) return;
    const access = { relaxedOrdering: this.#relaxedOrdering };
    this.#uses.set(region, new RegionUse(MemoryRegion.host(this.#domain, address, bytes.length, access)));
  }

  /** Hot path. Undefined if the region is not registered. */
  find(region: Region): RegionUse | undefined {
    return this.#uses.get(region);
  }

  /** Nothing reads it any more. */
  remove(region: Region): void {
    this.#uses.get(region)?.registered.close();
    this.#uses.delete(region);
  }

  forgetEnd(end: PathEnd): void {
    for (const use of this.#uses.values()) use.forget(end);
  }
}
