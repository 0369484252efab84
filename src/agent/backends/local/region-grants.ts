// The peer's regions that a transfer touches, as keys to look up before each step. Shared by the threads that copy.
import { mailboxRegion } from '../../../abi/agent-mailbox.ts';

/** What a copy of a step fails with when the peer has taken a region back; neither an errno nor CUT_SHORT. */
export const REVOKED = -2;

/** Index of a word of the peer's table of regions, and what stands there as long as the region is registered. */
export interface RegionGrant {
  readonly keyAt: number;
  /** As a signed number. */
  readonly keyValue: number;
}

const WORDS = mailboxRegion.size / 4;

export function grantOf({ slot, key }: { readonly slot: number; readonly key: number }): RegionGrant {
  return { keyAt: slot * WORDS, keyValue: key | 0 };
}

export class RegionGrants {
  /** For `RegionGrants.over` in another thread: index of a word of the table and its value, for each region. */
  readonly buffer: SharedArrayBuffer;
  readonly #pairs: Int32Array;

  static of(regions: readonly RegionGrant[]): RegionGrants {
    const buffer = new SharedArrayBuffer(regions.length * 8);
    new Int32Array(buffer).set(regions.flatMap(({ keyAt, keyValue }) => [keyAt, keyValue]));
    return new RegionGrants(buffer);
  }

  static over(buffer: SharedArrayBuffer): RegionGrants {
    return new RegionGrants(buffer);
  }

  private constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer;
    this.#pairs = new Int32Array(buffer);
  }

  /** Hot path. True if all of them are registered. `keys`: the table in the peer's mailbox. */
  areHeld(keys: Int32Array): boolean {
    const pairs = this.#pairs;
    for (let at = 0; at < pairs.length; at += 2) {
      if (Atomics.load(keys, pairs[at]!) !== pairs[at + 1]) return false;
    }
    return true;
  }
}
