// Many ranges of one region here, and where in one region of the peer each belongs: what one scattered write carries.
import { MAX_SCATTER_ENTRIES, SCATTER_ENTRY_BYTES } from '../../abi/transport-packet.ts';
import { invalidArgument } from '../../core/errors.ts';

/** In bytes; all of the same length. */
interface Ranges {
  readonly sources: Float64Array;
  readonly targets: Float64Array;
  readonly lengths: Float64Array;
}

/** The windows name a segment of a scattered write by the number of a range times this, and a place in that range. */
export const RANGE_SPAN: number = 2 ** 29;
export const MAX_RANGES: number = 2 ** 53 / RANGE_SPAN;

const NO_RANGES = new Float64Array();

/** Ranges `first` to before `end` of columns that other lists may share. Fixed while a write uses it; many writes can share one. */
export class RangeList {
  first = 0;
  end = 0;
  sources: Float64Array = NO_RANGES;
  targets: Float64Array = NO_RANGES;
  lengths: Float64Array = NO_RANGES;
  /** Of all ranges. */
  bytes = 0;
  longest = 0;
  /** Where the one that ends last ends, here. */
  sourceEnd = 0;

  /** Fails with WL_INVALID_ARGUMENT. */
  constructor(ranges: Ranges, first = 0, end: number = ranges.lengths.length) {
    this.fill(ranges, first, end);
  }

  /** Hot path. Names other ranges, once no write uses the list any more. Fails as the constructor does. */
  fill({ sources, targets, lengths }: Ranges, first: number, end: number): void {
    if (first >= end) throw invalidArgument('lengths.length', 0, 'at least one range');
    let [bytes, longest, sourceEnd] = [0, 0, 0];
    for (let index = first; index < end; index++) {
      const length = lengths[index] ?? -1;
      const source = sources[index] ?? -1;
      const target = targets[index] ?? -1;
      if (!(isWhole(length) && isWhole(source) && isWhole(target)) || target + length > 2 ** 48) {
        throw invalidArgument(`range ${index}`, [source, target, length], 'whole numbers, the target below 2^48');
      }
      bytes += length;
      longest = Math.max(longest, length);
      sourceEnd = Math.max(sourceEnd, source + length);
    }
    this.first = first;
    this.end = end;
    this.sources = sources;
    this.targets = targets;
    this.lengths = lengths;
    this.bytes = bytes;
    this.longest = longest;
    this.sourceEnd = sourceEnd;
  }

  get count(): number {
    return this.end - this.first;
  }

  /** Hot path. True if a range can share a packet with `payloadBytes`; the segments of a longer one are its alone. */
  isShort(range: number, payloadBytes: number): boolean {
    return this.lengths[range]! <= payloadBytes - SCATTER_ENTRY_BYTES;
  }

  /** Hot path. The first range from `first` on that does not go into a packet with `room` bytes behind its header. */
  endOf(first: number, room: number): number {
    const { lengths } = this;
    const last = Math.min(this.end, first + MAX_SCATTER_ENTRIES);
    let left = room;
    let end = first;
    while (end < last) {
      left -= SCATTER_ENTRY_BYTES + lengths[end]!;
      if (left < 0) break;
      end++;
    }
    return end;
  }

  /** Hot path. Bytes of the ranges from `first` to before `end`. */
  bytesOf(first: number, end: number): number {
    let bytes = 0;
    for (let index = first; index < end; index++) bytes += this.lengths[index]!;
    return bytes;
  }
}

function isWhole(number: number): boolean {
  return Number.isSafeInteger(number) && number >= 0;
}
