// The tables of places in chunks of small ranges, as a peer that holds the secret may write them: their checksum is right.
import { defineLayout } from '#lib/abi/layout.js';
import type { Region } from '#lib/transport/engine/region.js';
import { Request } from '#lib/transport/engine/request.js';
import { ChunkOrder, Landing } from '#lib/transport/receive/landing.js';
import { RangeList } from '#lib/transport/send/range-list.js';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from '#lib/transport/wire/crc32c.js';
import { CHUNK_BYTES, chunkPlace, LANDING_BYTES, PLACE_BYTES } from '#lib/transport/wire/packet-layout.js';
import { type Decoder, Fault } from '../decoder.ts';
import { GuardedBytes } from '../guarded-bytes.ts';
import { joined } from '../mutate.ts';

const REGION_BYTES = 4096;

/** In front of the bytes of a chunk. */
const orderHead = defineLayout('FuzzOrder', {
  /** The index of one of `orders`, modulo their number. */
  order: 'u32',
  chunk: 'u32',
  places: 'u32',
  bytes: 'u32',
  /** Where in the landing memory the bytes of the input are. */
  at: 'u32',
});
const at = orderHead.offset;

/** Ranges that a read of this side has asked for. */
const asked = { sources: [0, 100, 4000], lengths: [40, 7, 96] };

interface Chunk {
  readonly landing: Landing;
  readonly order: ChunkOrder;
  readonly region: Region;
}

/** The landing memory: zeros but for what an input has put there. */
const memory = new Uint8Array(new SharedArrayBuffer(LANDING_BYTES));

const orders = [scatter, answer, rangesIn];

function seed(order: number, places: readonly (readonly [base: number, length: number])[]): Uint8Array {
  const head = new DataView(new ArrayBuffer(orderHead.size));
  const table = new DataView(new ArrayBuffer(places.length * PLACE_BYTES));
  for (const [index, [base, length]] of places.entries()) {
    table.setUint32(index * PLACE_BYTES + chunkPlace.offset.base, base, true);
    table.setUint16(index * PLACE_BYTES + chunkPlace.offset.length, length, true);
  }
  const data = places.reduce((sum, [, length]) => sum + Math.ceil(length / 8) * 8, 0);
  head.setUint32(at.order, order, true);
  head.setUint32(at.places, places.length, true);
  head.setUint32(at.bytes, table.byteLength + data, true);
  return joined(
    new Uint8Array(head.buffer),
    new Uint8Array(table.buffer),
    Uint8Array.from({ length: data }, (_, index) => index),
  );
}

function run(input: Uint8Array): void {
  if (input.length < orderHead.size) return;
  const head = new DataView(input.buffer, input.byteOffset);
  const bytes = input.subarray(orderHead.size);
  const place = head.getUint32(at.at, true) % (LANDING_BYTES - bytes.length + 1);
  memory.set(bytes, place);
  const order = new ChunkOrder();
  order.chunk = head.getUint32(at.chunk, true);
  order.places = head.getUint32(at.places, true);
  order.bytes = head.getUint32(at.bytes, true);
  const begin = order.chunk * CHUNK_BYTES;
  const end = begin + order.places * PLACE_BYTES;
  if (end <= LANDING_BYTES) {
    order.checksum = crc32cEnd(crc32cUpdate(CRC32C_START, new DataView(memory.buffer), begin, end));
  }
  const guarded = new GuardedBytes(REGION_BYTES);
  const region = {
    id: 1,
    key: 1,
    bytes: guarded.bytes,
    address: 0,
    remote: { read: true, write: true },
  };
  orders[head.getUint32(at.order, true) % orders.length]!({ landing: new Landing(memory, 0), order, region });
  guarded.check();
  memory.fill(0, place, place + bytes.length);
}

/** All of a chunk's ranges are where its places say, or none is anywhere. */
function scatter({ landing, order, region }: Chunk): void {
  const expected = region.bytes.slice();
  const view = new DataView(memory.buffer);
  if (landing.scatter(order, region) === 0) {
    let from = order.chunk * CHUNK_BYTES + order.places * PLACE_BYTES;
    for (let place = order.chunk * CHUNK_BYTES, left = order.places; left > 0; left--, place += PLACE_BYTES) {
      const low = view.getUint32(place + chunkPlace.offset.base, true);
      const base = low + view.getUint16(place + chunkPlace.offset.baseHigh, true) * 2 ** 32;
      const length = view.getUint16(place + chunkPlace.offset.length, true);
      if (base + length > REGION_BYTES) throw new Fault(`a range of ${length} bytes at ${base} was taken`);
      expected.set(memory.subarray(from, from + length), base);
      from += Math.ceil(length / 8) * 8;
    }
  }
  if (Buffer.compare(expected, region.bytes) !== 0) throw new Fault('the region has other bytes than the chunk says');
}

/** A read takes the bytes that it has asked for, where it wants them, and goes no further than it has asked. */
function answer({ landing, order, region }: Chunk): void {
  const { sources, lengths } = asked;
  const columns = { sources: Float64Array.from(sources), targets: new Float64Array(sources.length) };
  const request = new Request();
  request.kind = 'read';
  request.region = region;
  request.ranges = new RangeList({ ...columns, lengths: Float64Array.from(lengths) });
  request.segmented = true;
  const expected = region.bytes.slice();
  const taken = landing.answer(order, request) === 0 ? order.places : 0;
  if (request.nextAnswer.passed !== taken) throw new Fault('other ranges count as answered');
  let from = order.chunk * CHUNK_BYTES + order.places * PLACE_BYTES;
  for (const [index, length] of lengths.slice(0, taken).entries()) {
    expected.set(memory.subarray(from, from + length), sources[index]);
    from += Math.ceil(length / 8) * 8;
  }
  if (Buffer.compare(expected, region.bytes) !== 0) throw new Fault('the region has other bytes than the answer says');
}

/** What is to be read lies in the region. */
function rangesIn({ landing, order, region }: Chunk): void {
  const list = landing.rangesIn(order, region);
  if (list === undefined) return;
  if (list.count !== order.places) throw new Fault(`${list.count} ranges of ${order.places} places`);
  for (const [index, source] of list.sources.entries()) {
    if (source + list.lengths[index]! > REGION_BYTES) throw new Fault(`bytes from ${source} on would be read`);
  }
}

export const placesDecoder: Decoder = {
  name: 'places-of-a-chunk',
  codes: [],
  fields: [
    ...Object.values(at),
    ...[0, 1, 2].flatMap((place) =>
      Object.values(chunkPlace.offset).map((offset) => orderHead.size + place * PLACE_BYTES + offset),
    ),
  ],
  weight: 0.2,
  seeds: () =>
    [...orders.keys()].flatMap((order) => [
      seed(
        order,
        asked.sources.map((source, index) => [source, asked.lengths[index]!] as const),
      ),
      seed(order, [[0, 40]]),
      seed(order, [
        [REGION_BYTES - 8, 8],
        [REGION_BYTES, 0],
        [0, 1],
      ]),
      seed(
        order,
        Array.from({ length: 60 }, (_, index) => [index * 64, 64] as const),
      ),
    ]),
  run,
};
