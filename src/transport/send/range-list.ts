// Ranges of one region here, and where in one region of the peer each belongs: what one scattered write carries. The write
// gathers them into chunks, which travel as any other bytes and which the peer scatters.
import { PLACE_BYTES } from '../wire/packet-layout.ts';
import { invalidArgument } from '../../core/errors.ts';
import { isWhole } from '../../core/check-options.ts';
import { alignUp } from '../../abi/layout.ts';

/** Longest range of a list, of which four fill a chunk. */
export const MAX_RANGE_BYTES = 32_760;

/** Ranges of a write from this length on go from where they lie to where they belong: to copy one twice takes longer than its packets. */
export const DIRECT_BYTES = 6144;
/** Bytes of a list, on average, for each chunk that a long range ends: half a chunk. */
const LEAST_BETWEEN_CUTS = 65_536;

/** Longest part of a prepared transfer that is gathered: two copies of a longer one cost more than a request of its own. */
export const MAX_GATHERED_BYTES = 16_384;

/** Ranges begin at multiples of it in a chunk, so that both copies are aligned where the memory is. */
const RANGE_ALIGNMENT = 8;

/** Columns in bytes, all of the same length. */
interface Ranges {
  readonly sources: Float64Array;
  readonly targets: Float64Array;
  readonly lengths: Float64Array;
}

/** Columns of rows that stand for several ranges each, at equal distances. */
interface Repeats {
  readonly ranges: Uint32Array;
  readonly sourceStrides: Float64Array;
  readonly targetStrides: Float64Array;
}

/** Rows `first` to before `end` of columns that other lists may share. Fixed while a write uses it; many writes can share one. */
export class RangeList {
  first = 0;
  end = 0;
  sources: Float64Array = NO_RANGES;
  targets: Float64Array = NO_RANGES;
  lengths: Float64Array = NO_RANGES;
  /** Undefined: each row is one range. */
  repeats: Repeats | undefined;
  /** How many ranges there are. */
  count = 0;
  /** Bytes of all ranges, and of them in chunks, with their places. */
  bytes = 0;
  chunkBytes = 0;
  /** Bytes of all ranges as a write carries them: those from `directBytes` on as they are, the others in chunks. */
  writeBytes = 0;
  directBytes = DIRECT_BYTES;
  longest = 0;
  /** The end of the range that ends last, here. */
  sourceEnd = 0;

  /** Fails with WL_INVALID_ARGUMENT. */
  // oxlint-disable-next-line max-params -- as those of cover()
  constructor(ranges?: Ranges, first = 0, end: number = ranges?.lengths.length ?? 0, repeats?: Repeats) {
    if (ranges !== undefined) this.cover(ranges, first, end, repeats);
  }

  /** Hot path. Names other ranges, once no write uses the list any more. Fails as the constructor does. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  cover({ sources, targets, lengths }: Ranges, first: number, end: number, repeats?: Repeats): void {
    if (first >= end) throw invalidArgument('lengths.length', 0, 'at least one range');
    let [count, bytes, chunkBytes, writeBytes, longest, sourceEnd, cuts] = [0, 0, 0, 0, 0, 0, 0];
    let before = DIRECT_BYTES;
    for (let index = first; index < end; index++) {
      const length = lengths[index] ?? -1;
      const source = sources[index] ?? -1;
      const target = targets[index] ?? -1;
      const ranges = repeats === undefined ? 1 : repeats.ranges[index]!;
      const lastSource = ranges > 1 ? source + (ranges - 1) * repeats!.sourceStrides[index]! : source;
      const lastTarget = ranges > 1 ? target + (ranges - 1) * repeats!.targetStrides[index]! : target;
      const areWhole = isWhole(length, 0) && isWhole(source, 0) && isWhole(target, 0);
      if (!(areWhole && lastSource >= source && lastTarget >= target) || lastTarget + length > 2 ** 48) {
        throw invalidArgument(`range ${index}`, [source, target, length], 'whole numbers, the target below 2^48');
      }
      count += ranges;
      bytes += ranges * length;
      chunkBytes += ranges * bytesInChunk(length);
      writeBytes += ranges * bytesInWrite(length);
      cuts += Number(length >= DIRECT_BYTES && before < DIRECT_BYTES);
      before = length;
      longest = Math.max(longest, length);
      sourceEnd = Math.max(sourceEnd, lastSource + length);
    }
    this.first = first;
    this.end = end;
    this.sources = sources;
    this.targets = targets;
    this.lengths = lengths;
    this.repeats = repeats;
    this.count = count;
    this.bytes = bytes;
    this.chunkBytes = chunkBytes;
    // A long range ends the chunk before it. Where chunks would be nearly empty, there would soon be none left.
    const areApart = bytes >= cuts * LEAST_BETWEEN_CUTS;
    this.directBytes = areApart ? DIRECT_BYTES : Number.POSITIVE_INFINITY;
    this.writeBytes = areApart ? writeBytes : chunkBytes;
    this.longest = longest;
    this.sourceEnd = sourceEnd;
  }
}

const NO_RANGES = new Float64Array();

/** How far somebody is with the ranges of a list. Hot path: no allocation. */
export class RangeCursor {
  /** Ranges that are passed. */
  passed = 0;
  /** The row of the next range, and how many of that row's ranges are passed. */
  row = 0;
  within = 0;

  restart({ first }: RangeList): void {
    this.passed = 0;
    this.row = first;
    this.within = 0;
  }

  follow({ passed, row, within }: RangeCursor): void {
    this.passed = passed;
    this.row = row;
    this.within = within;
  }

  /** Goes back to the range with so many before it. Takes longer, the more rows lie between. */
  back(passed: number, list: RangeList): void {
    while (this.passed > passed) {
      if (this.within === 0) {
        this.row--;
        this.within = this.leftIn(list);
      }
      const step = Math.min(this.within, this.passed - passed);
      this.within -= step;
      this.passed -= step;
    }
  }

  /** Ranges of the row that are left. */
  leftIn({ repeats }: RangeList): number {
    return (repeats === undefined ? 1 : repeats.ranges[this.row]!) - this.within;
  }

  /** Passes ranges of the row, at most those that are left. */
  pass(ranges: number, list: RangeList): void {
    this.passed += ranges;
    if (ranges < this.leftIn(list)) this.within += ranges;
    else {
      this.row++;
      this.within = 0;
    }
  }

  /** Where the next range is in its region here. */
  source({ sources, repeats }: RangeList): number {
    const source = sources[this.row]!;
    return this.within === 0 ? source : source + this.within * (repeats as Repeats).sourceStrides[this.row]!;
  }

  /** Where the next range is in its region there. */
  target({ targets, repeats }: RangeList): number {
    const target = targets[this.row]!;
    return this.within === 0 ? target : target + this.within * (repeats as Repeats).targetStrides[this.row]!;
  }
}

/** What a range takes of a write whose long ranges go as they are. */
function bytesInWrite(length: number): number {
  return length < DIRECT_BYTES ? bytesInChunk(length) : length;
}

/** What a range takes of a chunk: its place and its bytes. */
export function bytesInChunk(length: number): number {
  return PLACE_BYTES + alignUp(length, RANGE_ALIGNMENT);
}
