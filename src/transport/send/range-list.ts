// Many ranges of one region here, and where in one region of the peer each belongs: what one scattered write carries.
import type { PartTable } from '../part-table.ts';
import { MAX_SCATTER_ENTRIES, SCATTER_ENTRY_BYTES } from '../wire/packet-layout.ts';
import { invalidArgument } from '../../core/errors.ts';
import { isWhole } from '../../core/check-options.ts';

/** Columns in bytes, all of the same length. */
interface Ranges {
  readonly sources: Float64Array;
  readonly targets: Float64Array;
  readonly lengths: Float64Array;
}

/** The windows name a segment of a scattered write by the number of a range times this, and a place in that range. */
export const RANGE_STRIDE: number = 2 ** 29;
export const MAX_RANGES: number = 2 ** 53 / RANGE_STRIDE;

const NO_RANGES = new Float64Array();

/** Ranges `first` to before `end` of columns that other lists may share. Fixed while a write uses it; many writes can share one. */
export class RangeList {
  first = 0;
  end = 0;
  sources: Float64Array = NO_RANGES;
  targets: Float64Array = NO_RANGES;
  lengths: Float64Array = NO_RANGES;
  /** Bytes of all ranges. */
  bytes = 0;
  longest = 0;
  /** The end of the range that ends last, here. */
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
      if (!(isWhole(length, 0) && isWhole(source, 0) && isWhole(target, 0)) || target + length > 2 ** 48) {
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

/** Longest range of prepared transfers that shares packets of `payloadBytes`: longer ones are worth requests of their own. */
export function longestScattered(payloadBytes: number): number {
  return Math.floor(payloadBytes / 2) - SCATTER_ENTRY_BYTES;
}

// Ranges of a caller's table as one scattered write carries them: joined where they are neighbours, long ones first and in
// packets of their own, the others and what is left of those cut where packets end.
// Hot path: memory grows to what was needed at most, and is used again.

/** Cuts are made at multiples of so many bytes of a range, so that copies stay aligned. */
const CUT_BYTES = 64;
const FIRST_CAPACITY = 256;

/** Full packets of one range that are worth bursts of their own. */
const LONG_PACKETS = 4;
/** Most bytes of one range of the list. */
const MAX_LONG_BYTES = 2 ** 28;

/** Neighbours of the table, joined. */
interface Run {
  source: number;
  target: number;
  bytes: number;
}

/** What the ranges are to go into. */
interface PackingLimits {
  /** Bytes of the region of this side. */
  readonly regionBytes: number;
  /** Payload of a full packet. */
  readonly payloadBytes: number;
}

export class PackedRanges {
  /** What was packed last. Means nothing if that was no byte. */
  readonly list: RangeList;
  #columns = columnsOf(FIRST_CAPACITY);
  #count = 0;
  readonly #run: Run = { source: 0, target: 0, bytes: 0 };

  constructor() {
    this.list = new RangeList(this.#columns);
  }

  /**
   * Packs parts `first` to before `end`. The table is not needed afterwards. Returns how many ranges that makes, 0 if there
   * are no bytes. Fails with WL_INVALID_ARGUMENT for ranges outside of the region of this side.
   */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  pack(table: PartTable, first: number, end: number, { regionBytes, payloadBytes }: PackingLimits): number {
    const run = this.#run;
    this.#count = 0;
    let hasLong = false;
    for (let index = first; index < end;) {
      index = takeRun(run, table, index, end, regionBytes);
      if (this.#addLong(run, payloadBytes)) hasLong = true;
    }
    let [room, entries] = [payloadBytes, 0];
    for (let index = first; index < end;) {
      index = takeRun(run, table, index, end, regionBytes);
      if (hasLong) skipLong(run, payloadBytes);
      while (run.bytes > 0) {
        const fitting = room - SCATTER_ENTRY_BYTES;
        const taken = run.bytes <= fitting ? run.bytes : fitting - (fitting % CUT_BYTES);
        if (taken <= 0 || entries === MAX_SCATTER_ENTRIES) {
          [room, entries] = [payloadBytes, 0];
          continue;
        }
        this.#add(run, taken);
        entries++;
        room -= SCATTER_ENTRY_BYTES + taken;
      }
    }
    if (this.#count > 0) this.list.fill(this.#columns, 0, this.#count);
    return this.#count;
  }

  /** What of a long run fills packets of its own: those go as bursts. True if that is anything. */
  #addLong(run: Run, payloadBytes: number): boolean {
    let long = longBytes(run, payloadBytes);
    if (long === 0) return false;
    const most = MAX_LONG_BYTES - (MAX_LONG_BYTES % payloadBytes);
    while (long > 0) {
      const taken = Math.min(long, most);
      this.#add(run, taken);
      long -= taken;
    }
    return true;
  }

  /** The beginning of the run becomes a range, the rest stays. */
  #add(run: Run, taken: number): void {
    const count = this.#count++;
    if (count === this.#columns.lengths.length) this.#grow();
    const { sources, targets, lengths } = this.#columns;
    sources[count] = run.source;
    targets[count] = run.target;
    lengths[count] = taken;
    advance(run, taken);
  }

  #grow(): void {
    const { sources, targets, lengths } = this.#columns;
    const grown = columnsOf(lengths.length * 2);
    grown.sources.set(sources);
    grown.targets.set(targets);
    grown.lengths.set(lengths);
    this.#columns = grown;
  }
}

/** Joins neighbours from part `first` on into `run`. Returns the part behind them. */
// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per run
function takeRun(run: Run, table: PartTable, first: number, end: number, regionBytes: number): number {
  const { localOffset, remoteOffset, bytes } = table;
  const source = localOffset[first]!;
  const target = remoteOffset[first]!;
  let total = 0;
  let index = first;
  do {
    const length = bytes[index]!;
    if (!(isWhole(length, 0) && isWhole(source, 0) && source + total + length <= regionBytes)) {
      throw invalidArgument(
        `range ${index}`,
        [localOffset[index], length],
        `inside of the region of ${regionBytes} bytes`,
      );
    }
    total += length;
    index++;
  } while (index < end && localOffset[index] === source + total && remoteOffset[index] === target + total);
  run.source = source;
  run.target = target;
  run.bytes = total;
  return index;
}

/** How much from the beginning of a run on goes by itself. */
function longBytes({ bytes }: Run, payloadBytes: number): number {
  return bytes >= LONG_PACKETS * payloadBytes ? bytes - (bytes % payloadBytes) : 0;
}

function skipLong(run: Run, payloadBytes: number): void {
  advance(run, longBytes(run, payloadBytes));
}

function advance(run: Run, bytes: number): void {
  run.source += bytes;
  run.target += bytes;
  run.bytes -= bytes;
}

function columnsOf(capacity: number): { sources: Float64Array; targets: Float64Array; lengths: Float64Array } {
  const column = (): Float64Array => new Float64Array(capacity);
  return { sources: column(), targets: column(), lengths: column() };
}
