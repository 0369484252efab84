// Bursts over UDP sockets of this machine: what goes out of a region comes in at the other socket, packet by packet.
import assert from 'node:assert/strict';
import test from 'node:test';
import { NativeBlock } from '#lib/native/library.js';
import { DatagramReceiver, RECEIVE_ARENA_BYTES } from '#lib/transport/io/udp/udp-io.js';
import { UdpPacketIo, UdpSocket } from '#lib/transport/io/udp/udp-packet-io.js';
import type { Burst } from '#lib/transport/io/packet-io.js';
import type { Region } from '#lib/transport/engine/region.js';

const HEADER = 64;

interface Ends extends Disposable {
  readonly io: UdpPacketIo;
  readonly receiver: DatagramReceiver;
  readonly to: UdpSocket;
}

function ends(segments: number): Ends {
  const options = { host: '127.0.0.1', bufferBytes: 4 << 20 };
  const from = new UdpSocket(options);
  const to = new UdpSocket(options);
  from.connect(to);
  to.connect(from);
  const io = new UdpPacketIo(new NativeBlock(64), () => {});
  io.setPeer(0, [{ fd: from.fd, peer: 0, segments }]);
  const receiver = new DatagramReceiver(new NativeBlock(RECEIVE_ARENA_BYTES));
  return {
    io,
    receiver,
    to,
    [Symbol.dispose]: () => {
      from[Symbol.dispose]();
      to[Symbol.dispose]();
    },
  };
}

function regionOf(bytes: number): Region {
  const block = new NativeBlock(bytes);
  for (let index = 0; index < bytes; index += 1) block.bytes[index] = index * 7 + (index >> 8);
  return { id: 1, key: 1, bytes: block.bytes, address: block.address, remote: { read: false, write: false } };
}

function burst(fields: Partial<Burst>): Burst {
  return {
    peer: 0,
    path: 0,
    count: 1,
    headerOffset: 0,
    headerBytes: HEADER,
    region: undefined,
    payloadOffset: 0,
    payloadBytes: 0,
    lastPayloadBytes: 0,
    urgent: false,
    ...fields,
  };
}

test('large datagrams that travel alone are put where they belong once some have come, all others into the arena', () => {
  using pair = ends(1);
  const { io, to } = pair;
  const payload = 60_000;
  const region = regionOf(24 * payload);
  const place = new NativeBlock(24 * payload);
  const asked: number[] = [];
  let isWelcome = true;
  const arena = new NativeBlock(RECEIVE_ARENA_BYTES);
  const receiver = new DatagramReceiver(arena, {
    payloadAddress: (bytes, at, length) => {
      const number = bytes[at]!;
      asked.push(length);
      return isWelcome ? place.address + number * payload : 0;
    },
  });
  const { batch } = receiver;
  const send = (number: number, bytes: number): void => {
    io.arena[0] = number;
    io.send(burst({ region, payloadOffset: number * payload, payloadBytes: bytes, lastPayloadBytes: bytes }));
    io.flush();
  };
  const payloadOf = (number: number, bytes: number): Uint8Array =>
    region.bytes.subarray(number * payload, number * payload + bytes);
  send(0, payload);
  receiver.receive(to.fd, 3);
  assert.deepEqual([batch.count, batch.placed[0], asked.length], [1, 0, 0]);
  for (let number = 1; number <= 3; number += 1) send(number, number === 2 ? 100 : payload);
  receiver.receive(to.fd, 3);
  assert.equal(batch.count, 3);
  assert.deepEqual([...batch.placed.subarray(0, 3)], [1, 0, 1]);
  assert.deepEqual([...batch.length.subarray(0, 3)], [payload + HEADER, 100 + HEADER, payload + HEADER]);
  assert.deepEqual(
    [0, 1, 2].map((slot) => batch.bytes[batch.offset[slot]!]),
    [1, 2, 3],
  );
  assert.deepEqual(place.bytes.slice(payload, 2 * payload), payloadOf(1, payload).slice());
  assert.deepEqual(place.bytes.slice(3 * payload, 4 * payload), payloadOf(3, payload).slice());
  const second = batch.offset[1]! + HEADER;
  assert.deepEqual(batch.bytes.slice(second, second + 100), payloadOf(2, 100).slice());
  // Datagrams that may not are received whole, and then not asked about for a while.
  isWelcome = false;
  asked.length = 0;
  for (let number = 4; number <= 6; number += 1) {
    send(number, payload);
    receiver.receive(to.fd, 3);
    assert.deepEqual([batch.count, batch.placed[0], batch.length[0]], [1, 0, payload + HEADER]);
    const at = batch.offset[0]! + HEADER;
    assert.deepEqual(batch.bytes.slice(at, at + payload), payloadOf(number, payload).slice());
  }
  assert.equal(asked.length, 1);
});

/** Every datagram that has arrived, joined ones taken apart. */
function arrived({ receiver, to }: Ends): Uint8Array[] {
  const packets: Uint8Array[] = [];
  const { batch } = receiver;
  for (;;) {
    receiver.receive(to.fd, 3);
    if (batch.count === 0) return packets;
    for (let entry = 0; entry < batch.count; entry += 1) {
      assert.equal(batch.peer[entry], 3);
      const start = batch.offset[entry] as number;
      const end = start + (batch.length[entry] as number);
      const step = batch.segmentBytes[entry] || end - start;
      for (let at = start; at < end; at += step) packets.push(batch.bytes.slice(at, Math.min(end, at + step)));
    }
  }
}

for (const [segments, how] of [
  [64, 'cut by the kernel'],
  [1, 'each by itself'],
] as const) {
  test(`a burst arrives as its packets, ${how}`, () => {
    using both = ends(segments);
    const { io } = both;
    const region = regionOf(200_000);
    const payloadBytes = 1408;
    for (let packet = 0; packet < 40; packet += 1) io.arena.fill(packet + 1, packet * HEADER, (packet + 1) * HEADER);
    const first = burst({ count: 30, region, payloadOffset: 100, payloadBytes, lastPayloadBytes: 33 });
    const second = burst({
      count: 10,
      headerOffset: 30 * HEADER,
      region,
      payloadOffset: 90_000,
      payloadBytes,
      lastPayloadBytes: payloadBytes,
    });
    io.send(first);
    io.send(second);
    io.flush();
    const packets = arrived(both);
    assert.equal(packets.length, 40);
    for (const [index, packet] of packets.entries()) {
      assert.deepEqual(packet.subarray(0, HEADER), new Uint8Array(HEADER).fill(index + 1));
      const at = index < 30 ? 100 + index * payloadBytes : 90_000 + (index - 30) * payloadBytes;
      const bytes = index === 29 ? 33 : payloadBytes;
      assert.deepEqual(packet.subarray(HEADER), region.bytes.subarray(at, at + bytes), `packet ${index}`);
    }
    assert.deepEqual(io.failures, { full: 0, tooLarge: 0, refused: 0, other: 0 });
  });
}

test('packets of headers alone, and urgent ones before data', () => {
  using both = ends(64);
  const { io } = both;
  io.arena.fill(1, 0, 4 * HEADER).fill(9, 4 * HEADER, 5 * HEADER);
  io.send(burst({ count: 4 }));
  io.send(burst({ headerOffset: 4 * HEADER, headerBytes: 40, urgent: true }));
  io.flush();
  assert.deepEqual(
    arrived(both).map((packet) => [packet.length, packet[0]]),
    [
      [40, 9],
      [HEADER, 1],
      [HEADER, 1],
      [HEADER, 1],
      [HEADER, 1],
    ],
  );
});

test('room shrinks with what is taken, and a flush makes it whole', () => {
  using both = ends(64);
  const { io } = both;
  const room = io.room();
  assert.ok(room >= 2);
  io.send(burst({}));
  assert.equal(io.room(), room - 1);
  io.flush();
  assert.equal(io.room(), room);
});

test('a send that the kernel refuses to cut goes out uncut from then on', () => {
  using both = ends(64);
  const { io } = both;
  const region = regionOf(70_000);
  // More bytes than a send may have: the kernel refuses, the burst is lost, and counted.
  io.send(burst({ count: 50, region, payloadBytes: 1300, lastPayloadBytes: 1300 }));
  io.flush();
  assert.equal(arrived(both).length, 0);
  assert.equal(io.failures.tooLarge + io.failures.other, 1);
});

test('payload is placed from the arena into the region, in runs', () => {
  const arena = new NativeBlock(8192);
  for (let index = 0; index < 8192; index += 1) arena.bytes[index] = index;
  const io = new UdpPacketIo(arena, () => {});
  const target = regionOf(8192);
  target.bytes.fill(0);
  io.place({
    source: arena.bytes,
    sourceOffset: 64,
    sourceStride: 164,
    region: target,
    regionOffset: 10,
    count: 3,
    payloadBytes: 100,
    lastPayloadBytes: 7,
  });
  const expected = [64, 228].flatMap((at) => [...arena.bytes.subarray(at, at + 100)]);
  expected.push(...arena.bytes.subarray(392, 399));
  assert.deepEqual([...target.bytes.subarray(10, 217)], expected);
  assert.equal(target.bytes[9], 0);
  assert.equal(target.bytes[217], 0);
});

test('a closed port of the peer is noticed', () => {
  using both = ends(1);
  both.to[Symbol.dispose]();
  both.io.send(burst({}));
  both.io.flush();
  both.io.send(burst({}));
  both.io.flush();
  assert.equal(both.io.failures.refused, 1);
});
