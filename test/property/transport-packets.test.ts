// Hostile input: whatever bytes come, the engine does not throw, writes nothing outside its regions, and goes on.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import { alignUp } from '#lib/abi/layout.js';
import { CRC32C_START, crc32cEnd, crc32cUpdate } from '#lib/transport/wire/crc32c.js';
import {
  ackHeader,
  CHUNK_BYTES,
  chunkPlace,
  controlHeader,
  controlRecord,
  DATA_HEADER_BYTES,
  dataHeader,
  LANDING_BYTES,
  packetFlags,
  packetKinds,
  packetPrefix,
  PLACE_BYTES,
  TRANSPORT_VERSION,
} from '#lib/transport/wire/packet-layout.js';
import { isEnded, Loopback, pattern } from '../unit/transport/support/loopback.js';

const SECRET = 0x0123_4567_89ab_cdefn;
/** Bytes around each region that must keep their value. */
const GUARD = 256;

function setUp(transportAuthentication = false, direct = false) {
  const net = new Loopback({
    direct,
    paths: 4,
    settings: { transportChecksum: 'none', transportGiveUpMs: 100_000, transportAuthentication },
  });
  const memory = new Uint8Array(4096 + 2 * GUARD).fill(0xa5);
  const inner = new Uint8Array(memory.buffer, GUARD, 4096);
  const region = net.b.regionOf(inner);
  const receives = [10, 2000, 0].map((bytes) =>
    net.b.connection.postReceive({ region, offset: Math.max(0, 4096 - bytes), bytes }),
  );
  const local = net.a.region(4096);
  const read = net.b.connection.read({
    region,
    offset: 1000,
    bytes: 500,
    remoteRegion: local.id,
    remoteKey: local.key,
    remoteOffset: 0,
  });
  net.b.engine.onTimer(net.now);
  return { net, memory, region, handles: [...receives, read] };
}

/** A number that means something to the receiver, or any other. */
function mostly(values: readonly number[]): fc.Arbitrary<number> {
  return fc.oneof(
    { arbitrary: fc.constantFrom(...values), weight: 6 },
    { arbitrary: fc.constantFrom(0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0xffff_ffff), weight: 2 },
    { arbitrary: fc.integer({ min: 0, max: 0xffff_ffff }), weight: 1 },
  );
}

const packetOf = fc.record({
  kind: mostly(Object.values(packetKinds)),
  flags: fc.integer({ min: 0, max: 2047 }),
  path: mostly([0, 1, 3]),
  authentic: fc.boolean(),
  words: fc.array(mostly([0, 1, 2, 8, 31, 32, 100, 2000, 4000, 4096]), { minLength: 16, maxLength: 16 }),
  target: fc.nat(5),
  body: fc.uint8Array({ maxLength: 300 }),
  /** Where bytes of a chunk are said to belong: base, length. */
  places: fc.array(fc.tuple(mostly([0, 1, 4000, 4095, 4096]), fc.constantFrom(0, 1, 8, 96, 97, 60_000)), {
    maxLength: 4,
  }),
  honestLength: fc.boolean(),
  cut: fc.option(fc.nat(400)),
  segmentBytes: mostly([0, 64, 100, 400]),
});

type Packet = typeof packetOf extends fc.Arbitrary<infer T> ? T : never;

function headerBytes(kind: number): number {
  if (kind === packetKinds.ack) return ackHeader.size;
  return kind === packetKinds.control ? controlHeader.size : DATA_HEADER_BYTES;
}

/** Chunks that were built last, by number. */
const built = new Map<number, { readonly places: number; readonly bytes: number; readonly checksum: number }>();

/** A part of a chunk that lands at its beginning; or an order to scatter that chunk, all of which fits together. */
function makeChunkHonest(
  view: DataView,
  { packet, places, bytes }: { readonly packet: Packet; readonly places: number; readonly bytes: number },
): void {
  const { offset } = dataHeader;
  const chunk = packet.target % 2;
  const isChunk = (packet.flags & packetFlags.chunk) !== 0;
  const order = built.get(chunk);
  if (!isChunk && ((packet.flags & packetFlags.scatter) === 0 || order === undefined)) return;
  view.setUint16(offset.baseHigh, 0, true);
  view.setUint8(offset.messageBytesHigh, 0);
  view.setUint8(offset.offsetHigh, isChunk ? 0 : chunk);
  if (isChunk) {
    const end = DATA_HEADER_BYTES + places * PLACE_BYTES;
    built.set(chunk, { places, bytes, checksum: crc32cEnd(crc32cUpdate(CRC32C_START, view, DATA_HEADER_BYTES, end)) });
    view.setUint32(offset.offset, chunk * CHUNK_BYTES, true);
    view.setUint32(offset.messageBytes, LANDING_BYTES, true);
    view.setUint32(offset.base, 0, true);
    view.setUint32(offset.targetKey, 0, true);
  } else if (order !== undefined) {
    view.setInt32(offset.offset, order.checksum, true);
    view.setUint32(offset.messageBytes, order.bytes, true);
    view.setUint32(offset.base, order.places, true);
  }
}

function build(packet: Packet, id: number, targets: readonly (readonly [number, number])[]): Uint8Array {
  const size = headerBytes(packet.kind);
  const isData = size === DATA_HEADER_BYTES;
  const isChunk = isData && (packet.flags & packetFlags.chunk) !== 0;
  const places = isChunk ? packet.places : [];
  // Half of the time, what the places say is what there is.
  const said = places.reduce((sum, [, length]) => sum + alignUp(length, 8), 0);
  const body = isChunk && packet.honestLength && said < 400 ? new Uint8Array(said).fill(1) : packet.body;
  const head = places.length * PLACE_BYTES;
  const bytes = new Uint8Array(size + head + body.length);
  const view = new DataView(bytes.buffer);
  packet.words.forEach((word, index) => {
    if (index * 4 + 4 <= size) view.setUint32(index * 4, word, true);
  });
  bytes.set(body, size + head);
  places.forEach(([base, length], index) => {
    view.setUint32(size + index * PLACE_BYTES + chunkPlace.offset.base, base, true);
    view.setUint16(size + index * PLACE_BYTES + chunkPlace.offset.length, length, true);
  });
  const at = packetPrefix.offset;
  view.setUint8(at.version, TRANSPORT_VERSION);
  view.setUint8(at.kind, packet.kind & 255);
  view.setUint16(at.flags, packet.flags, true);
  view.setUint32(at.connection, id, true);
  view.setBigUint64(at.secretLow, packet.authentic ? SECRET : SECRET ^ 1n, true);
  view.setUint16(at.path, packet.path & 0xffff, true);
  if (packet.honestLength) view.setUint16(at.length, head + body.length, true);
  if (size === DATA_HEADER_BYTES) {
    const [target, key] = targets[packet.target % targets.length] as readonly [number, number];
    view.setUint32(36, target, true);
    view.setUint32(40, key, true);
  }
  if (isData && packet.honestLength)
    makeChunkHonest(view, { packet, places: places.length, bytes: head + body.length });
  if (packet.kind === packetKinds.control)
    view.setUint16(28, Math.floor(packet.body.length / controlRecord.size), true);
  return packet.cut === null ? bytes : bytes.subarray(0, packet.cut);
}

test('no packet makes the engine throw or write outside a region', () => {
  fc.assert(
    fc.property(fc.array(packetOf, { maxLength: 60 }), fc.boolean(), (packets, direct) => {
      const { net, memory, region, handles } = setUp(false, direct);
      const targets: [number, number][] = [
        ...handles.map((handle): [number, number] => [handle, 0]),
        [region.id, region.key],
        [region.id, 5],
      ];
      for (const packet of packets) {
        net.receive(net.b, build(packet, net.b.connection.id, targets), packet.segmentBytes & 0xffff);
        net.now += 7;
        net.b.engine.onTimer(net.now);
      }
      assert.ok(memory.subarray(0, GUARD).every((byte) => byte === 0xa5));
      assert.ok(memory.subarray(GUARD + 4096).every((byte) => byte === 0xa5));
    }),
    { numRuns: 1500 },
  );
});

test('packets without the secret, and with it but without a tag where packets are authenticated, change nothing at all', () => {
  fc.assert(
    fc.property(fc.array(packetOf, { maxLength: 30 }), fc.boolean(), (packets, isAuthenticated) => {
      const { net, memory, handles } = setUp(isAuthenticated, true);
      const before = Uint8Array.from(memory);
      for (const packet of packets) {
        net.receive(
          net.b,
          build({ ...packet, authentic: isAuthenticated }, net.b.connection.id, [[handles[0] as number, 0]]),
          0,
        );
      }
      assert.deepEqual(memory, before);
      assert.equal(net.b.connection.statistics.receivedSegments, 0);
      const drops = Object.values(net.b.engine.drops).reduce((sum, count) => sum + count, 0);
      assert.equal(drops, packets.length);
    }),
    { numRuns: 200 },
  );
});

test('what a connection really sent, replayed, cut and with changed bits, between its packets: every message arrives', () => {
  const attacksOf = fc.array(fc.tuple(fc.nat(), fc.nat(), fc.nat(3)), { maxLength: 60 });
  fc.assert(
    fc.property(fc.integer(), fc.boolean(), attacksOf, (seed, transportAuthentication, attacks) => {
      const sent: Uint8Array[] = [];
      const net = new Loopback({
        seed,
        paths: 3,
        loss: 0.02,
        reordering: 0.2,
        settings: { transportChecksum: 'full', transportWindowBytes: 16_384, transportAuthentication },
        lose: (packet) => {
          sent.push(packet.bytes);
          return false;
        },
      });
      const from = net.a.region(60_000);
      const to = net.b.region(60_000);
      pattern(from.bytes, seed);
      const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 60_000 });
      const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 60_000 });
      for (const [which, where, how] of attacks) {
        net.run(() => isEnded(net.a, send), 15);
        const packet = sent[which % Math.max(1, sent.length)];
        if (packet === undefined) continue;
        const forged = how === 0 ? packet.subarray(0, where % packet.length) : Uint8Array.from(packet);
        if (how === 1) forged[where % forged.length] = (forged[where % forged.length] as number) ^ (1 << (where % 8));
        net.receive(which % 2 === 0 ? net.a : net.b, forged, how === 3 ? where % 100 : 0);
      }
      assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive)));
      assert.equal(net.a.engine.requestError(send), undefined);
      assert.deepEqual(to.bytes, from.bytes);
    }),
    { numRuns: 60 },
  );
});
