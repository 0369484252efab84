// The parts of one transfer in columns. Whoever plans it fills them in; backends read them in place, on any thread.

const WIDE_COLUMNS = 5;
const INDEX_COLUMNS = 3;
const ROW_BYTES = WIDE_COLUMNS * 8 + INDEX_COLUMNS * 4;
/** The first word is the number of rows. */
const HEAD_BYTES = 8;

/**
 * Row i moves `bytes[i]` bytes between `localOffset[i]` of region `local[i]` and `remoteOffset[i]` of region `remote[i]`, and
 * does so `ranges[i]` times, `localStride[i]` and `remoteStride[i]` bytes further on each time.
 */
export class PartTable {
  /** What other threads need: `PartTable.over(buffer)` is the same table. */
  readonly buffer: SharedArrayBuffer;
  /** How many rows there may be. */
  readonly capacity: number;
  /** Bytes from the start of the region. */
  readonly localOffset: Float64Array;
  readonly remoteOffset: Float64Array;
  readonly bytes: Float64Array;
  /** Mean nothing in a row of one range. */
  readonly localStride: Float64Array;
  readonly remoteStride: Float64Array;
  /** Indices into the lists of regions that come with the table. */
  readonly local: Uint32Array;
  readonly remote: Uint32Array;
  readonly ranges: Uint32Array;
  readonly #head: Uint32Array;

  /** A table of so many rows, each of one range, and zero otherwise. */
  static ofCount(count: number): PartTable {
    const table = PartTable.withRoom(count);
    table.count = count;
    table.ranges.fill(1);
    return table;
  }

  /** A table without rows that has room for so many. Memory is taken as rows are written. */
  static withRoom(capacity: number): PartTable {
    return new PartTable(new SharedArrayBuffer(HEAD_BYTES + capacity * ROW_BYTES));
  }

  static over(buffer: SharedArrayBuffer): PartTable {
    return new PartTable(buffer);
  }

  private constructor(buffer: SharedArrayBuffer) {
    const capacity = (buffer.byteLength - HEAD_BYTES) / ROW_BYTES;
    const wide = (column: number): Float64Array =>
      new Float64Array(buffer, HEAD_BYTES + column * capacity * 8, capacity);
    const indices = (column: number): Uint32Array =>
      new Uint32Array(buffer, HEAD_BYTES + capacity * (WIDE_COLUMNS * 8 + column * 4), capacity);
    this.buffer = buffer;
    this.capacity = capacity;
    this.localOffset = wide(0);
    this.remoteOffset = wide(1);
    this.bytes = wide(2);
    this.localStride = wide(3);
    this.remoteStride = wide(4);
    this.local = indices(0);
    this.remote = indices(1);
    this.ranges = indices(2);
    this.#head = new Uint32Array(buffer, 0, 1);
  }

  /** The rows that count. */
  get count(): number {
    return this.#head[0]!;
  }

  set count(count: number) {
    this.#head[0] = count;
  }

  /** Bytes and ranges of all rows. */
  sums(): { readonly bytes: number; readonly ranges: number } {
    let [bytes, ranges] = [0, 0];
    for (let row = 0; row < this.count; row++) {
      bytes += this.bytes[row]! * this.ranges[row]!;
      ranges += this.ranges[row]!;
    }
    return { bytes, ranges };
  }

  /** The same columns, with room for more. */
  grown(capacity: number): PartTable {
    const grown = PartTable.ofCount(capacity);
    for (const column of columnNames) grown[column].set(this[column]);
    return grown;
  }
}

const columnNames = [
  'localOffset',
  'remoteOffset',
  'bytes',
  'localStride',
  'remoteStride',
  'local',
  'remote',
  'ranges',
] as const;

/** Most ranges of a row. */
const MAX_RANGES = 2 ** 32 - 1;

/**
 * Writes rows to a table, and joins them where they go on where the last one ends. Hot path: no allocation while the table has
 * room, and one call per part, because a long list is mostly written before the compiler has seen the loop.
 */
export class PartWriter {
  readonly #merge: boolean;
  #table: PartTable;
  #rows = 0;
  /** Where the only range of the last row ends, or -1 if it may not become longer. */
  #localEnd = -1;
  #remoteEnd = -1;
  /** Where a further range of the last row would begin, and how far apart its ranges are. */
  #localNext = -1;
  #remoteNext = -1;
  #localStride = 0;
  #remoteStride = 0;

  /** `merge`: parts that are neighbours on both sides become one. */
  constructor(table: PartTable, merge: boolean) {
    this.#table = table;
    this.#merge = merge;
  }

  /** Forgets the rows that were added. */
  restart(): void {
    this.#rows = 0;
    this.#localEnd = -1;
    this.#localNext = -1;
  }

  /** The table, with the rows that were added. */
  finish(): PartTable {
    this.#table.count = this.#rows;
    return this.#table;
  }

  /** As the columns of a row say it. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per part
  add(
    local: number,
    localOffset: number,
    localStride: number,
    remote: number,
    remoteOffset: number,
    remoteStride: number,
    bytes: number,
    ranges: number,
  ): void {
    if (ranges > 1 && this.#merge && localStride === bytes && remoteStride === bytes) {
      this.add(local, localOffset, localStride, remote, remoteOffset, remoteStride, bytes * ranges, 1);
      return;
    }
    if (localOffset === this.#localEnd && remoteOffset === this.#remoteEnd) {
      if (ranges === 1 && this.#isBetween(local, remote)) {
        this.#lengthen(bytes);
        return;
      }
    }
    if (localOffset === this.#localNext && remoteOffset === this.#remoteNext) {
      const isAsFar = localStride === this.#localStride && remoteStride === this.#remoteStride;
      if (isAsFar && this.#isBetween(local, remote) && this.#mayHave(bytes, ranges)) {
        this.#repeat(ranges);
        return;
      }
    }
    const row = this.#rows++;
    if (row === this.#table.capacity) this.#table = this.#table.grown(2 * row);
    const table = this.#table;
    table.local[row] = local;
    table.localOffset[row] = localOffset;
    table.remote[row] = remote;
    table.remoteOffset[row] = remoteOffset;
    table.bytes[row] = bytes;
    table.ranges[row] = ranges;
    this.#localNext = localOffset + ranges * localStride;
    this.#remoteNext = remoteOffset + ranges * remoteStride;
    this.#localStride = localStride;
    this.#remoteStride = remoteStride;
    this.#localEnd = this.#merge ? localOffset + bytes : -1;
    this.#remoteEnd = remoteOffset + bytes;
    // Memory of strides that nobody reads is not touched.
    if (ranges > 1) this.#repeat(0);
  }

  /** True if these are the regions of the last row. */
  #isBetween(local: number, remote: number): boolean {
    const last = this.#rows - 1;
    return this.#table.local[last] === local && this.#table.remote[last] === remote;
  }

  /** True if the last row is of such ranges, and can have so many more. */
  #mayHave(bytes: number, ranges: number): boolean {
    const last = this.#rows - 1;
    return this.#table.bytes[last] === bytes && this.#table.ranges[last]! + ranges <= MAX_RANGES;
  }

  /** Gives the only range of the last row so many bytes more. */
  #lengthen(bytes: number): void {
    this.#table.bytes[this.#rows - 1]! += bytes;
    this.#localEnd += bytes;
    this.#remoteEnd += bytes;
  }

  /** Gives the last row so many ranges more, and its strides. */
  #repeat(ranges: number): void {
    const table = this.#table;
    const last = this.#rows - 1;
    table.ranges[last]! += ranges;
    table.localStride[last] = this.#localStride;
    table.remoteStride[last] = this.#remoteStride;
    this.#localNext += ranges * this.#localStride;
    this.#remoteNext += ranges * this.#remoteStride;
    this.#localEnd = -1;
  }
}
