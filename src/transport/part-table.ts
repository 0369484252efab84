// The parts of one transfer in columns. The plan makes it once; backends read it in place, on any thread.

const WIDE_COLUMNS = 3;
const INDEX_COLUMNS = 2;
const PART_BYTES = WIDE_COLUMNS * 8 + INDEX_COLUMNS * 4;

/** Part i moves `bytes[i]` bytes between `localOffset[i]` of region `local[i]` and `remoteOffset[i]` of region `remote[i]`. */
export class PartTable {
  /** What other threads need: `PartTable.over(buffer)` is the same table. */
  readonly buffer: SharedArrayBuffer;
  readonly count: number;
  /** Bytes from the start of the region. */
  readonly localOffset: Float64Array;
  readonly remoteOffset: Float64Array;
  readonly bytes: Float64Array;
  /** Indices into the lists of regions that come with the table. */
  readonly local: Uint32Array;
  readonly remote: Uint32Array;

  /** A table with all parts zero. */
  static ofCount(count: number): PartTable {
    return new PartTable(new SharedArrayBuffer(count * PART_BYTES));
  }

  static over(buffer: SharedArrayBuffer): PartTable {
    return new PartTable(buffer);
  }

  private constructor(buffer: SharedArrayBuffer) {
    const count = buffer.byteLength / PART_BYTES;
    const wide = (column: number): Float64Array => new Float64Array(buffer, column * count * 8, count);
    const indices = (column: number): Uint32Array =>
      new Uint32Array(buffer, count * (WIDE_COLUMNS * 8 + column * 4), count);
    this.buffer = buffer;
    this.count = count;
    this.localOffset = wide(0);
    this.remoteOffset = wide(1);
    this.bytes = wide(2);
    this.local = indices(0);
    this.remote = indices(1);
  }

  /** The first `count` parts, as a table of their own. */
  head(count: number): PartTable {
    if (count === this.count) return this;
    const head = PartTable.ofCount(count);
    head.localOffset.set(this.localOffset.subarray(0, count));
    head.remoteOffset.set(this.remoteOffset.subarray(0, count));
    head.bytes.set(this.bytes.subarray(0, count));
    head.local.set(this.local.subarray(0, count));
    head.remote.set(this.remote.subarray(0, count));
    return head;
  }
}
