// Finds the runs of small writes in a plan that can share packets.
import { RangeList } from '../range-list.ts';

/** Of a part of a plan: region, offset, remote region, remote key, remote offset, bytes. */
export const PART_NUMBERS = 6;

/** Consecutive parts between the same two regions, from number `first` on. */
export interface Scatter {
  readonly first: number;
  readonly region: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;
  readonly ranges: RangeList;
}

/** Runs of at least two parts of at most `longest` bytes. */
export function findScatters(parts: Float64Array, longest: number): Scatter[] {
  const found: Scatter[] = [];
  const count = parts.length / PART_NUMBERS;
  for (let first = 0; first < count;) {
    let end = first;
    while (end < count && bytesAt(parts, end) <= longest && haveSameEnds(parts, first, end)) end++;
    if (end - first > 1) found.push(makeScatter(parts, first, end));
    first = Math.max(end, first + 1);
  }
  return found;
}

function makeScatter(parts: Float64Array, first: number, end: number): Scatter {
  const column = (number: number): Float64Array =>
    Float64Array.from({ length: end - first }, (_, at) => parts[(first + at) * PART_NUMBERS + number] as number);
  const at = first * PART_NUMBERS;
  return {
    first,
    region: parts[at] as number,
    remoteRegion: parts[at + 2] as number,
    remoteKey: parts[at + 3] as number,
    ranges: new RangeList({ sources: column(1), targets: column(4), lengths: column(5) }),
  };
}

function bytesAt(parts: Float64Array, part: number): number {
  return parts[part * PART_NUMBERS + 5] as number;
}

function haveSameEnds(parts: Float64Array, one: number, other: number): boolean {
  return [0, 2, 3].every((number) => parts[one * PART_NUMBERS + number] === parts[other * PART_NUMBERS + number]);
}
