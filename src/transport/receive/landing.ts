// Where chunks of small ranges land, and how they get from there to their places in a region. Hot path: no allocation.
import type { Region } from '../engine/region.ts';
import type { Request } from '../engine/request.ts';
import { bytesInChunk, MAX_RANGE_BYTES, RangeCursor, RangeList } from '../send/range-list.ts';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from '../wire/crc32c.ts';
import { CHUNK_BYTES, CHUNKS, failReasons, LANDING_BYTES, PLACE_BYTES } from '../wire/packet-layout.ts';

const TWO_32 = 2 ** 32;

/** What to do with a chunk, as the segment behind it says. */
export class ChunkOrder {
  sequence = 0;
  flags = 0;
  /** Region of this side, and the key that was shown; or a request of this side. */
  target = 0;
  targetKey = 0;
  /** The number of the chunk, its places and its bytes. */
  chunk = 0;
  places = 0;
  bytes = 0;
  /** Where the ranges are to be read: the peer's request, and the flow of the answers. */
  reader = 0;
  flow = 0;
  /** Checksum of the places: the bytes behind them are no better protected than those of any write. */
  checksum = 0;
}

/** One per connection that a peer sends chunks to. */
export class Landing {
  /** Memory that the peer may write to as to a region, by the key 0. */
  readonly region: Region;
  readonly #words: Int32Array;
  readonly #view: DataView;
  /** Orders that came before a segment that precedes them: none is carried out before the chunk is here. */
  readonly #held: ChunkOrder[] = Array.from({ length: CHUNKS }, () => new ChunkOrder());
  #heldCount = 0;
  /** How far the chunk of answers that is looked at reaches. */
  readonly #answered = new RangeCursor();

  /** `bytes`: LANDING_BYTES, at a native address, or 0 where there is none. */
  constructor(bytes: Uint8Array, address: number) {
    this.region = { id: 0, key: 0, bytes, address, remote: { read: false, write: true } };
    this.#words = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  /** Keeps a copy of the order. One too many is not kept, and comes again. `next`: the oldest segment that is missing. */
  hold(order: ChunkOrder, next: number): void {
    for (let index = this.#heldCount - 1; index >= 0; index--) {
      const { sequence } = this.#held[index]!;
      if (sequence === order.sequence) return;
      // The peer has taken it back.
      if (((sequence - next) | 0) < 0) this.take(sequence);
    }
    if (this.#heldCount < CHUNKS) Object.assign(this.#held[this.#heldCount++]!, order);
  }

  /** The order that is held for a segment, no longer held; it is the caller's until the next call. Undefined if there is none. */
  take(sequence: number): ChunkOrder | undefined {
    for (let index = 0; index < this.#heldCount; index++) {
      const order = this.#held[index]!;
      if (order.sequence !== sequence) continue;
      const last = --this.#heldCount;
      this.#held[index] = this.#held[last]!;
      this.#held[last] = order;
      return order;
    }
    return undefined;
  }

  /** Copies the ranges of a chunk, which is here, to their places. Returns 0, or why it copied none of them: one of failReasons. */
  scatter(order: ChunkOrder, region: Region): number {
    if (!this.#isWhole(order)) return failReasons.bounds;
    const { places, bytes } = order;
    const begin = order.chunk * CHUNK_BYTES;
    const first = begin + places * PLACE_BYTES;
    const most = region.bytes.byteLength;
    const words = this.#words;
    let left = bytes;
    for (let word = begin >>> 2; word < first >>> 2; word += PLACE_BYTES / 4) {
      const length = lengthAt(words, word);
      if (baseAt(words, word) + length > most) return failReasons.bounds;
      left -= bytesInChunk(length);
    }
    if (left !== 0) return failReasons.bounds;
    let from = first;
    for (let word = begin >>> 2; word < first >>> 2; word += PLACE_BYTES / 4) {
      from += this.#copy(region, from, baseAt(words, word), lengthAt(words, word));
    }
    return 0;
  }

  /** Copies a chunk of answers to the next ranges of the read that asked for them. Returns as scatter() does. */
  answer(order: ChunkOrder, request: Request): number {
    const ranges = request.ranges as RangeList;
    const { places, bytes, chunk } = order;
    const { nextAnswer } = request;
    // The last ranges have been asked for once the request is in segments as a whole.
    const asked = request.segmented ? ranges.count : Math.min(request.nextRange.passed, ranges.count - 1);
    if (!this.#isWhole(order) || nextAnswer.passed + places > asked) return failReasons.bounds;
    const { lengths } = ranges;
    const words = this.#words;
    const answered = this.#answered;
    answered.follow(nextAnswer);
    const begin = chunk * CHUNK_BYTES;
    let left = bytes;
    for (let index = 0; index < places; index++) {
      const length = lengths[answered.row]!;
      answered.pass(1, ranges);
      if (lengthAt(words, (begin + index * PLACE_BYTES) >>> 2) !== length) return failReasons.bounds;
      left -= bytesInChunk(length);
    }
    if (left !== 0) return failReasons.bounds;
    let from = begin + places * PLACE_BYTES;
    for (let index = 0; index < places; index++) {
      const length = lengths[nextAnswer.row]!;
      from += this.#copy(request.region as Region, from, nextAnswer.source(ranges), length);
      nextAnswer.pass(1, ranges);
    }
    return 0;
  }

  /** The ranges of a region that a chunk of places names; undefined if it names others, or too many bytes for a request. */
  rangesIn(order: ChunkOrder, region: Region): RangeList | undefined {
    const { places, chunk } = order;
    if (!this.#isWhole(order)) return undefined;
    const words = this.#words;
    const columns = {
      sources: new Float64Array(places),
      targets: new Float64Array(places),
      lengths: new Float64Array(places),
    };
    for (let index = 0; index < places; index++) {
      const word = (chunk * CHUNK_BYTES + index * PLACE_BYTES) >>> 2;
      columns.sources[index] = baseAt(words, word);
      columns.lengths[index] = lengthAt(words, word);
    }
    const list = new RangeList(columns);
    return list.sourceEnd > region.bytes.byteLength || list.longest > MAX_RANGE_BYTES ? undefined : list;
  }

  /** True if a chunk is one, and its places are what the sender wrote. */
  #isWhole({ chunk, places, bytes, checksum }: ChunkOrder): boolean {
    const begin = chunk * CHUNK_BYTES;
    const end = begin + places * PLACE_BYTES;
    if (places === 0 || places * PLACE_BYTES > bytes || bytes > CHUNK_BYTES || begin + bytes > LANDING_BYTES)
      return false;
    return crc32cEnd(crc32cUpdate(CRC32C_START, this.#view, begin, end)) === checksum;
  }

  /** Copies one range out of landing memory. Returns the distance to the next. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per range
  #copy(region: Region, from: number, to: number, length: number): number {
    region.bytes.set(this.region.bytes.subarray(from, from + length), to);
    return bytesInChunk(length) - PLACE_BYTES;
  }
}

/** Where a range is in its region, by the place at `word`. */
function baseAt(words: Int32Array, word: number): number {
  return (words[word]! >>> 0) + (words[word + 1]! & 0xffff) * TWO_32;
}

function lengthAt(words: Int32Array, word: number): number {
  return words[word + 1]! >>> 16;
}
