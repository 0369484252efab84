// What requests are about: memory here, memory and counters of the peer.
import type { PartTable } from '../part-table.ts';
import type { MemoryRegion } from './memory-region.ts';

/** Part of a region of this side; all of it by default. */
export interface LocalPart {
  readonly region: MemoryRegion;
  readonly offset?: number;
  readonly bytes?: number;
  /** Messages of a flow meet receives of the same flow in the order of posting; 0 by default, at most 65535. */
  readonly flow?: number;
}

/** Where a one-sided operation goes: `region.remote` of the peer, and an offset in it. */
export interface RemotePart {
  readonly remoteRegion: number;
  readonly remoteKey: number;
  /** 0 by default. */
  readonly remoteOffset?: number;
}

/** What a write says beside its memory. */
export interface WriteOptions {
  /** It stays on the lane of its flow's signals, however large it is: none of them then waits for another lane. */
  readonly pinned?: boolean;
}

/** Which counter of the peer a signal adds to, and how much. */
export interface SignalPart extends RemotePart {
  readonly flow?: number;
  /** Added to the 64-bit cell at `remoteOffset`, a multiple of 8. */
  readonly add: number;
}

/** Some ranges of a table that all engines of a connection know. */
export interface RangesPart extends WriteOptions {
  readonly ranges: SharedRangesNames;
  readonly first: number;
  readonly count: number;
  readonly flow?: number;
}

/** What the engines call a table of ranges, by lane of its connection. */
export interface SharedRangesNames {
  readonly table: PartTable;
  readonly numbers: readonly number[];
}
