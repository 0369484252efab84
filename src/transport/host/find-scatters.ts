// Finds the runs of small writes in a plan that can share packets.
import type { PartTable } from '../part-table.ts';
import { RangeList } from '../send/range-list.ts';

/** Runs of at least two consecutive parts of at most `longest` bytes between the same two regions, over the table's columns. */
export function findScatters(table: PartTable, longest: number): RangeList[] {
  const found: RangeList[] = [];
  const { count, bytes, local, remote } = table;
  const columns = { sources: table.localOffset, targets: table.remoteOffset, lengths: bytes };
  for (let first = 0; first < count;) {
    let end = first;
    while (end < count && bytes[end]! <= longest && local[end] === local[first] && remote[end] === remote[first]) {
      end++;
    }
    if (end - first > 1) found.push(new RangeList(columns, first, end));
    first = Math.max(end, first + 1);
  }
  return found;
}
