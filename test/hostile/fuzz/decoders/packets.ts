// Packets of the transport: a whole engine is fed with a conversation, by someone who holds the secret and by someone who does not.
import {
  controlHeader,
  dataHeader,
  packetFlags,
  packetKinds,
  packetPrefix,
  TRANSPORT_VERSION,
} from '#lib/transport/wire/packet-layout.js';
import { RangeList } from '#lib/transport/send/range-list.js';
import { Loopback, pattern, type Side } from '../../../unit/transport/support/loopback.js';
import { type Decoder, Fault } from '../decoder.ts';
import { GuardedBytes } from '../guarded-bytes.ts';
import { joined } from '../mutate.ts';

const SECRET = 0x0123_4567_89ab_cdefn;
const REGION_BYTES = 4096;
/** In front of each packet of an input: its length, and what the kernel says of joined packets. */
const HEAD_BYTES = 4;
const MAX_PACKETS = 12;

const settings = { transportGiveUpMs: 100_000 } as const;

interface Target {
  readonly net: Loopback;
  readonly memory: GuardedBytes;
}

/** An engine with regions that may be written, read, and neither, receives that are open, and requests of its own. */
function createTarget(checksum: 'none' | 'full', lose?: (bytes: Uint8Array, to: Side) => void): Target {
  const net = new Loopback({
    paths: 3,
    secret: SECRET,
    settings: { ...settings, transportChecksum: checksum },
    ...(lose === undefined
      ? {}
      : {
          lose: ({ bytes, to }) => {
            lose(bytes, to);
            return false;
          },
        }),
  });
  const memory = new GuardedBytes(REGION_BYTES);
  const region = net.b.engine.register({ bytes: memory.bytes, remote: { read: true, write: true } });
  const own = net.a.region(REGION_BYTES);
  net.b.connection.postReceive({ region, offset: 0, bytes: 2000 });
  net.b.connection.postReceive({ region, offset: 2000, bytes: 100 });
  const there = { region, offset: 3000, bytes: 500, remoteOffset: 0 };
  net.b.connection.read({ ...there, remoteRegion: own.id, remoteKey: own.key });
  net.b.connection.gather({ region, ranges: ranges(3500), remoteRegion: own.id, remoteKey: own.key });
  if (lose !== undefined) {
    pattern(own.bytes);
    const remote = { remoteRegion: region.id, remoteKey: region.key };
    net.a.connection.postSend({ region: own, offset: 0, bytes: 1900 });
    net.a.connection.write({ region: own, offset: 0, bytes: 3000, remoteOffset: 100, ...remote });
    net.a.connection.read({ region: own, offset: 0, bytes: 64, remoteOffset: 8, ...remote });
    net.a.connection.scatter({ region: own, ranges: ranges(1000), ...remote });
    net.a.connection.gather({ region: own, ranges: ranges(2000), ...remote });
    net.a.connection.flush();
    net.run(() => false, 50_000);
  } else net.b.engine.onTimer(net.now);
  return { net, memory };
}

/** Small ranges from `source` on, which travel in chunks with a table of their places. */
function ranges(source: number): RangeList {
  return new RangeList({
    sources: Float64Array.of(source, source + 100, source + 150),
    targets: Float64Array.of(3200, 3000, 0),
    lengths: Float64Array.of(40, 7, 25),
  });
}

function encodePackets(packets: readonly Uint8Array[]): Uint8Array {
  return joined(
    ...packets.slice(0, MAX_PACKETS).flatMap((packet) => {
      const head = new Uint8Array(HEAD_BYTES);
      new DataView(head.buffer).setUint16(0, packet.length, true);
      return [head, packet];
    }),
  );
}

function* packetsOf(input: Uint8Array): Generator<{ readonly bytes: Uint8Array; readonly segmentBytes: number }> {
  const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
  let at = 0;
  for (let count = 0; count < MAX_PACKETS && at + HEAD_BYTES <= input.length; count++) {
    const end = Math.min(input.length, at + HEAD_BYTES + view.getUint16(at, true));
    const said = view.getUint16(at + 2, true);
    yield { bytes: input.slice(at + HEAD_BYTES, end), segmentBytes: said };
    at = end;
  }
}

function conversation(checksum: 'none' | 'full'): readonly Uint8Array[] {
  const packets: Uint8Array[] = [];
  createTarget(checksum, (bytes, to) => to.name === 'b' && packets.push(bytes.slice()));
  const byKind = Object.values(packetKinds).map((kind) =>
    packets.filter((bytes) => bytes[packetPrefix.offset.kind] === kind),
  );
  const ofChunks = packets.filter((bytes) => {
    const flags = bytes[packetPrefix.offset.flags]! + 256 * bytes[packetPrefix.offset.flags + 1]!;
    return (flags & (packetFlags.chunk | packetFlags.scatter | packetFlags.gather)) !== 0;
  });
  return [
    encodePackets(packets),
    encodePackets(packets.slice(MAX_PACKETS)),
    ...[...byKind, ofChunks].filter((some) => some.length > 0).map(encodePackets),
  ];
}

/** What a packet must have to be looked at: version, connection, secret, length. */
function authenticate(bytes: Uint8Array, connection: number, secret: bigint): void {
  if (bytes.length < packetPrefix.size) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const at = packetPrefix.offset;
  view.setUint8(at.version, TRANSPORT_VERSION);
  view.setUint32(at.connection, connection, true);
  view.setBigUint64(at.secretLow, secret, true);
}

function give(target: Target, input: Uint8Array, change: (bytes: Uint8Array, index: number) => void): void {
  const { net } = target;
  let index = 0;
  for (const { bytes, segmentBytes } of packetsOf(input)) {
    change(bytes, index++);
    net.receive(net.b, bytes, segmentBytes);
    net.now += 7;
    net.b.engine.onTimer(net.now);
  }
  net.now += 5000;
  net.b.engine.onTimer(net.now);
  target.memory.check();
}

const fields = [
  ...Object.values(packetPrefix.offset),
  ...Object.values(dataHeader.offset),
  ...Object.values(controlHeader.offset),
].map((offset) => offset + HEAD_BYTES);

/** Holds the secret, so that everything behind it is reached. */
const member: Decoder = {
  name: 'packets-of-a-peer',
  codes: [],
  fields,
  weight: 0.2,
  seeds: () => conversation('none'),
  run: (input) => {
    const target = createTarget('none');
    give(target, input, (bytes) => {
      authenticate(bytes, target.net.b.connection.id, SECRET);
      // Half of the packets say truly how long they are.
      const header = headerBytes(bytes[packetPrefix.offset.kind] as number);
      if (header === 0 || bytes.length < header || (bytes[bytes.length - 1] as number) % 2 === 0) return;
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      view.setUint16(packetPrefix.offset.length, bytes.length - header, true);
    });
  },
};

/** Does not hold the secret: nothing at all may change. */
const stranger: Decoder = {
  name: 'packets-of-a-stranger',
  codes: [],
  fields,
  weight: 0.2,
  seeds: () => conversation('none'),
  run: (input) => {
    const target = createTarget('none');
    const { b } = target.net;
    const before = target.memory.bytes.slice();
    give(target, input, (bytes) => authenticate(bytes, b.connection.id, SECRET ^ 1n));
    if (Buffer.compare(before, target.memory.bytes) !== 0)
      throw new Fault('a packet without the secret changed memory');
    if (b.connection.statistics.receivedSegments !== 0) throw new Fault('a packet without the secret was believed');
    if (b.connection.error !== undefined) throw new Fault('packets without the secret ended the connection');
  },
};

/** With checksums, as they were sent but changed on the way: nothing wrong may be written. */
const network: Decoder = {
  name: 'packets-through-a-network',
  codes: [],
  fields,
  weight: 0.1,
  seeds: () => conversation('full'),
  run: (input) => give(createTarget('full'), input, () => {}),
};

function headerBytes(kind: number): number {
  if (kind === packetKinds.data || kind === packetKinds.probe) return dataHeader.size;
  return kind === packetKinds.control ? controlHeader.size : 0;
}

export const packetDecoders: readonly Decoder[] = [member, stranger, network];
