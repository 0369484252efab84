// The chunks of a connection: memory of this side with the shape of the peer's landing memory. A chunk is gathered, sent, told
// to be scattered, and free again when the peer has acknowledged all of that. Hot path: no allocation.
import type { Region } from '../engine/region.ts';
import type { Request } from '../engine/request.ts';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from '../wire/crc32c.ts';
import { CHUNK_BYTES, CHUNKS, PLACE_BYTES } from '../wire/packet-layout.ts';
import { bytesInChunk, RangeCursor, type RangeList } from './range-list.ts';

const TWO_32 = 2 ** 32;
/**
 * What the windows note of a segment of a chunk: this, plus its place in the memory of all chunks; or the second one plus the place
 * of the chunk, for the segment that has it scattered. Positions in messages are lower.
 */
export const CHUNK_ENTRY: number = 2 ** 41;
export const SCATTER_ENTRY: number = 2 ** 42;
/** The same of a segment of a long range: this, plus the number of the range in its list times the stride, plus the place in it. */
export const RANGE_ENTRY: number = 2 ** 43;
export const RANGE_STRIDE: number = 2 ** 15;

export class ChunkSender {
  /** The memory of all chunks. */
  readonly region: Region;
  /** Bytes and places of each chunk, and the checksum of its places. */
  readonly bytes: Int32Array = new Int32Array(CHUNKS);
  readonly places: Int32Array = new Int32Array(CHUNKS);
  readonly checksums: Int32Array = new Int32Array(CHUNKS);
  readonly #words: Int32Array;
  readonly #view: DataView;
  /** Segments of each chunk that the peer has not acknowledged. */
  readonly #unacked = new Int32Array(CHUNKS);
  /** A bit for each chunk that is free, and for each to which nothing is added any more. */
  #free = 2 ** CHUNKS - 1;
  /** The end of what is being gathered. */
  readonly #end = new RangeCursor();
  #closed = 0;

  /** `bytes`: CHUNKS × CHUNK_BYTES, at a native address, or 0 where there is none. */
  constructor(bytes: Uint8Array, address: number) {
    this.region = { id: 0, key: 0, bytes, address, remote: { read: false, write: false } };
    this.#words = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  /** Fills a free chunk with as many of the request's next ranges as it takes. False if none is free. */
  gather(request: Request): boolean {
    if (this.#free === 0) return false;
    const chunk = 31 - Math.clz32(this.#free & -this.#free);
    this.#free &= ~(1 << chunk);
    const list = request.ranges as RangeList;
    const isRead = request.kind === 'read';
    const end = this.#end;
    end.follow(request.nextRange);
    const first = end.passed;
    let used = 0;
    while (end.row < list.end) {
      if (request.kind === 'write' && list.lengths[end.row]! >= list.directBytes) break;
      const more = isRead ? PLACE_BYTES : bytesInChunk(list.lengths[end.row]!);
      const fitting = Math.min(end.leftIn(list), Math.floor((CHUNK_BYTES - used) / more));
      if (fitting === 0) break;
      used += more * fitting;
      end.pass(fitting, list);
    }
    const begin = chunk * CHUNK_BYTES;
    const places = end.passed - first;
    this.#fill(begin, request, places);
    this.bytes[chunk] = used;
    this.places[chunk] = places;
    this.checksums[chunk] = crc32cEnd(crc32cUpdate(CRC32C_START, this.#view, begin, begin + places * PLACE_BYTES));
    request.chunk = chunk;
    request.chunkPosition = 0;
    return true;
  }

  /** Passes so many ranges. */
  #fill(begin: number, { kind, ranges, region, nextRange }: Request, places: number): void {
    const words = this.#words;
    const { bytes: gathered } = this.region;
    const { bytes } = region as Region;
    const list = ranges as RangeList;
    let word = begin >>> 2;
    let to = begin + places * PLACE_BYTES;
    for (let index = 0; index < places; index++) {
      const source = nextRange.source(list);
      const target = nextRange.target(list);
      const length = list.lengths[nextRange.row]!;
      nextRange.pass(1, list);
      words[word] = target;
      words[word + 1] = Math.floor(target / TWO_32) | (length << 16);
      word += PLACE_BYTES / 4;
      // A read tells where the ranges are; their bytes come back.
      if (kind === 'read') continue;
      gathered.set(bytes.subarray(source, source + length), to);
      to += bytesInChunk(length) - PLACE_BYTES;
    }
  }

  /** Further segments of the chunk are on their way. */
  sent(chunk: number, segments: number): void {
    this.#unacked[chunk]! += segments;
  }

  /** Nothing is added to the chunk any more. */
  close(chunk: number): void {
    this.#closed |= 1 << chunk;
    this.#freeIfDone(chunk);
  }

  /** Segments of the chunk of an entry of the window are acknowledged. True if that made a chunk free. */
  acknowledge(entry: number, segments: number): boolean {
    const chunk = Math.floor((entry % CHUNK_ENTRY) / CHUNK_BYTES);
    this.#unacked[chunk]! -= segments;
    return this.#freeIfDone(chunk);
  }

  #freeIfDone(chunk: number): boolean {
    const bit = 1 << chunk;
    if ((this.#closed & bit) === 0 || this.#unacked[chunk] !== 0) return false;
    this.#closed &= ~bit;
    this.#free |= bit;
    return true;
  }
}
