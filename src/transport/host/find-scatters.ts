// Finds the runs of small writes in a plan that can share packets.
import type { PartTable } from '../../abi/part-table.ts';
import { RangeList } from '../range-list.ts';

/** Consecutive parts between the same two regions, from number `first` on. */
export interface Scatter {
  readonly first: number;
  /** Indices of the regions, as in the table. */
  readonly local: number;
  readonly remote: number;
  readonly ranges: RangeList;
}

/** Runs of at least two parts of at most `longest` bytes. */
export function findScatters(table: PartTable, longest: number): Scatter[] {
  const found: Scatter[] = [];
  const { count, bytes, local, remote } = table;
  for (let first = 0; first < count;) {
    let end = first;
    while (
      end < count &&
      (bytes[end] as number) <= longest &&
      local[end] === local[first] &&
      remote[end] === remote[first]
    ) {
      end++;
    }
    if (end - first > 1) found.push(makeScatter(table, first, end));
    first = Math.max(end, first + 1);
  }
  return found;
}

function makeScatter(table: PartTable, first: number, end: number): Scatter {
  return {
    first,
    local: table.local[first] as number,
    remote: table.remote[first] as number,
    ranges: new RangeList({
      sources: table.localOffset.subarray(first, end),
      targets: table.remoteOffset.subarray(first, end),
      lengths: table.bytes.subarray(first, end),
    }),
  };
}
