// Connections that authenticate their packets: what was changed, forged, reflected or replayed has no effect at all.
import assert from 'node:assert/strict';
import test from 'node:test';
import { authenticPrefix, packetFlags, packetKinds, packetPrefix } from '#lib/transport/wire/packet-layout.js';
import { RangeList } from '#lib/transport/send/range-list.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { type Flying, isEnded, Loopback, type LoopbackOptions, pattern, type Side } from './support/loopback.js';

const settings = { transportAuthentication: true, transportChecksum: 'none' } as const;

function dropsOf({ engine }: Side): number {
  return Object.values(engine.drops).reduce((sum, count) => sum + count, 0);
}

/** Every kind of packet that there is, in words. */
function kindOf(bytes: Uint8Array): string {
  const flags = new DataView(bytes.buffer, bytes.byteOffset).getUint16(packetPrefix.offset.flags, true);
  const [kind] = Object.entries(packetKinds).find(([, number]) => number === bytes[packetPrefix.offset.kind]) ?? [];
  const names = ['skip', 'signal', 'chunk', 'scatter', 'reset'] as const;
  return [kind, ...names.filter((name) => (flags & packetFlags[name]) !== 0)].join(' ');
}

const everyKind = [
  'ack',
  'ack reset',
  'control',
  'data',
  'data chunk',
  'data scatter',
  'data signal',
  'data skip',
  'probe',
];

/** All operations both ways, a cancelled one, silence and an end: every kind of packet. */
function runEverything(options: LoopbackOptions, attack?: (net: Loopback, packet: Flying) => void): Loopback {
  const lose = (packet: Flying): boolean => {
    attack?.(net, packet);
    // A path that carries no data is asked whether it is alive.
    return packet.path === 2 && packet.bytes[packetPrefix.offset.kind] === packetKinds.data && !net.options.join;
  };
  const net: Loopback = new Loopback({ paths: 3, settings, segmentBytes: 1024, loss: 0.05, lose, ...options });
  const [from, to, store] = [net.a.region(50_000), net.b.region(50_000), net.b.region(9000)];
  pattern(store.bytes, 5);
  const counters = net.b.region(8);
  pattern(from.bytes);
  const remote = { remoteRegion: to.id, remoteKey: to.key };
  const cancelled = net.a.connection.write({ region: from, offset: 0, bytes: 20_000, ...remote, remoteOffset: 0 });
  net.run(() => isEnded(net.a, cancelled), 15);
  net.a.connection.cancel(cancelled);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 9000 });
  const ranges = new RangeList({
    sources: Float64Array.of(0, 100, 350),
    targets: Float64Array.of(40_000, 41_000, 42_001),
    lengths: Float64Array.of(77, 250, 33),
  });
  const handles = [
    net.a.connection.postSend({ region: from, offset: 0, bytes: 9000 }),
    net.a.connection.write({ region: from, offset: 9000, bytes: 9000, ...remote, remoteOffset: 9000 }),
    net.a.connection.read({
      region: from,
      offset: 30_000,
      bytes: 9000,
      remoteRegion: store.id,
      remoteKey: store.key,
      remoteOffset: 0,
    }),
    net.a.connection.scatter({ region: from, ranges, ...remote }),
    net.a.connection.signal({ remoteRegion: counters.id, remoteKey: counters.key, remoteOffset: 0, add: 3 }),
  ];
  assert.ok(net.run(() => isEnded(net.b, receive) && handles.every((handle) => isEnded(net.a, handle))));
  for (const handle of handles) assert.equal(net.a.engine.poll(handle), requestStatus.done);
  assert.deepEqual(to.bytes.subarray(0, 18_000), from.bytes.subarray(0, 18_000));
  assert.deepEqual(from.bytes.subarray(30_000, 39_000), store.bytes);
  for (const [index, target] of ranges.targets.entries()) {
    const source = ranges.sources[index] as number;
    const bytes = ranges.lengths[index] as number;
    assert.deepEqual(to.bytes.subarray(target, target + bytes), from.bytes.subarray(source, source + bytes));
  }
  assert.equal(counters.bytes[0], 3);
  net.settle(100_000);
  net.a.connection.close();
  net.settle(100_000);
  return net;
}

test('everything arrives over a network that loses, doubles, reorders and changes packets, whole or joined', () => {
  const bad = { duplication: 0.05, reordering: 0.3, corruption: 0.03 };
  for (let seed = 1; seed <= 5; seed++) {
    const net = runEverything({ ...bad, seed });
    assert.ok(net.a.engine.drops.replay + net.b.engine.drops.replay > 0);
    assert.equal(net.a.engine.drops.checksum + net.b.engine.drops.checksum, 0);
  }
  runEverything({ loss: 0, join: true });
  // Packets are numbered from the upper half on.
  for (const secret of [0x7fff_fff8_0000_0000n, 0xffff_fff8_0000_0000n]) runEverything({ ...bad, secret });
});

test('a packet of any kind with any bit changed is dropped and changes nothing, and the packet itself still counts', () => {
  const tried = new Map<string, number>();
  const attack = (net: Loopback, { to, bytes }: Flying): void => {
    const kind = kindOf(bytes);
    const before = tried.get(kind) ?? 0;
    tried.set(kind, before + 1);
    // All bits of the first two of a kind, some bits of the others.
    const step = before < 2 ? 1 : 997;
    const state = JSON.stringify(to.connection.statistics);
    const due = to.engine.nextDeadline();
    const drops = dropsOf(to);
    let changed = 0;
    for (let bit = (before * 131) % step; bit < bytes.length * 8; bit += step) {
      const forged = Uint8Array.from(bytes);
      forged[bit >> 3] = (forged[bit >> 3] as number) ^ (1 << (bit & 7));
      net.receive(to, forged);
      changed++;
    }
    for (const length of [0, 23, 24, bytes.length - 1]) net.receive(to, bytes.subarray(0, length));
    net.receive(to, Uint8Array.from([...bytes, 0]));
    assert.equal(dropsOf(to) - drops, changed + 5, kind);
    assert.equal(JSON.stringify(to.connection.statistics), state, kind);
    assert.equal(to.engine.nextDeadline(), due, kind);
  };
  runEverything({}, attack);
  assert.deepEqual([...tried.keys()].toSorted(), everyKind);
});

test('packets with the right secret and no key are refused', () => {
  const secret = 0x0123_4567_89ab_cdefn;
  const sent: Flying[] = [];
  runEverything({ secret, settings: { transportChecksum: 'none' } }, (_, packet) => sent.push(packet));
  const net = new Loopback({ paths: 3, settings, secret, segmentBytes: 1024 });
  const target = net.b.region(50_000);
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, net.b.connection.id, true);
  for (const { bytes } of sent) {
    const forged = Uint8Array.from(bytes);
    forged.set(new Uint8Array(view.buffer), packetPrefix.offset.connection);
    net.receive(net.b, forged);
  }
  assert.equal(net.b.engine.drops.tag, sent.length);
  assert.ok(target.bytes.every((byte) => byte === 0));
  assert.equal(net.b.connection.error, undefined);
});

test('a packet that is sent back to its sender is refused, whatever connection it names', () => {
  const sent: Flying[] = [];
  const net = new Loopback({ paths: 2, settings, lose: (packet) => sent.push(packet) === 0 });
  const [from, to] = [net.a.region(9000), net.b.region(9000)];
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 9000 });
  net.a.connection.postSend({ region: from, offset: 0, bytes: 9000 });
  assert.ok(net.run(() => isEnded(net.b, receive)));
  net.settle(10_000);
  for (const packet of sent) {
    const sender = packet.to.other;
    const reflected = Uint8Array.from(packet.bytes);
    new DataView(reflected.buffer).setUint32(packetPrefix.offset.connection, sender.connection.id, true);
    const drops = sender.engine.drops.tag;
    net.receive(sender, reflected);
    assert.equal(sender.engine.drops.tag, drops + 1);
  }
});

test('a packet counts once: replayed at any time later it is dropped as a replay and changes nothing', () => {
  const sent: Flying[] = [];
  const net = new Loopback({ paths: 3, settings, segmentBytes: 512, lose: (packet) => sent.push(packet) === 0 });
  const [from, to] = [net.a.region(30_000), net.b.region(30_000)];
  const counter = net.b.region(8);
  for (let round = 0; round < 20; round++) {
    pattern(from.bytes, round);
    const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 30_000 });
    const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 30_000 });
    const cell = { remoteRegion: counter.id, remoteKey: counter.key, remoteOffset: 0 };
    const signal = net.a.connection.signal({ ...cell, add: 1 });
    assert.ok(net.run(() => [send, signal].every((handle) => isEnded(net.a, handle)) && isEnded(net.b, receive)));
    net.settle(10_000);
    const old = sent.slice();
    const states = [net.a, net.b].map(({ connection }) => JSON.stringify(connection.statistics));
    const replays = net.a.engine.drops.replay + net.b.engine.drops.replay;
    for (const packet of old) net.receive(packet.to, packet.bytes);
    assert.equal(net.a.engine.drops.replay + net.b.engine.drops.replay - replays, old.length);
    assert.deepEqual(
      states,
      [net.a, net.b].map(({ connection }) => JSON.stringify(connection.statistics)),
    );
    // Nothing of it wakes an engine, so nothing is answered.
    assert.deepEqual(
      [net.a, net.b].map(({ engine }) => engine.nextDeadline() > net.now),
      [true, true],
    );
    assert.equal(counter.bytes[0], round + 1);
    assert.deepEqual(to.bytes, from.bytes);
  }
});

test('a forged packet among joined ones costs nobody else', () => {
  let forged = 0;
  const net = new Loopback({
    settings,
    segmentBytes: 1024,
    join: true,
    lose: ({ bytes, segmentBytes }) => {
      if (segmentBytes === 0 || bytes.length < 3 * segmentBytes || forged > 0) return false;
      forged++;
      bytes[segmentBytes + 100] = (bytes[segmentBytes + 100] as number) ^ 4;
      return false;
    },
  });
  const [from, to] = [net.a.region(100_000), net.b.region(100_000)];
  pattern(from.bytes);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 100_000 });
  net.a.connection.postSend({ region: from, offset: 0, bytes: 100_000 });
  assert.ok(net.run(() => isEnded(net.b, receive)));
  assert.deepEqual(to.bytes, from.bytes);
  assert.deepEqual([forged, net.b.engine.drops.tag], [1, 1]);
  assert.equal(net.a.connection.statistics.retransmittedSegments, 1);
});

test('memory that changes while it is read reaches the reader all the same', () => {
  const net = new Loopback({ settings, segmentBytes: 1024, burstSegments: 8 });
  const [from, to] = [net.b.region(300_000), net.a.region(300_000)];
  const send = net.b.send.bind(net.b);
  let round = 0;
  // Between the moment when packets are tagged and the one when the I/O reads their payload.
  net.b.send = (burst) => {
    from.bytes.fill(++round);
    send(burst);
  };
  const place = { remoteRegion: from.id, remoteKey: from.key, remoteOffset: 0 };
  const read = net.a.connection.read({ region: to, offset: 0, bytes: 300_000, ...place });
  assert.ok(net.run(() => isEnded(net.a, read), 100_000));
  assert.equal(net.a.engine.poll(read), requestStatus.done);
  assert.equal(net.a.engine.drops.tag, 0);
  assert.ok(to.bytes.some((byte) => byte > 1));
});

test('connections have keys of their own, also where a connection is made in the place of one that was closed', () => {
  const net = new Loopback({ settings: { ...settings, transportGiveUpMs: 100 } });
  const exchange = (): void => {
    const [from, to] = [net.a.region(5000), net.b.region(5000)];
    pattern(from.bytes);
    const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 5000 });
    net.a.connection.postSend({ region: from, offset: 0, bytes: 5000 });
    assert.ok(net.run(() => isEnded(net.b, receive)));
    assert.deepEqual(to.bytes, from.bytes);
  };
  exchange();
  for (let round = 0; round < 3; round++) {
    net.a.connection.close();
    net.settle(10_000_000);
    net.a.engine.onTimer((net.now += 10_000_000));
    net.b.engine.onTimer(net.now);
    [net.a.connection, net.b.connection] = net.connect();
    exchange();
  }
  assert.equal(net.b.engine.drops.tag, 0);
});

test('numbers of packets lie where the secret and the checksum are without authentication', () => {
  assert.equal(authenticPrefix.size, packetPrefix.size);
  for (const field of ['version', 'kind', 'flags', 'connection', 'path', 'length'] as const) {
    assert.equal(authenticPrefix.offset[field], packetPrefix.offset[field]);
  }
});

test('keys of another length, or one key for both directions, are refused', () => {
  const net = new Loopback();
  const options = { secret: 1n, paths: 1, segmentBytes: 512, peer: 1, peerName: 'peer', remoteId: 5 };
  const key = new Uint8Array(32);
  const wrong = [
    { outgoing: key, incoming: new Uint8Array(32) },
    { outgoing: key, incoming: new Uint8Array(31).fill(1) },
  ];
  for (const packetKeys of wrong) {
    const localId = net.a.engine.reserveConnectionId();
    const make = (): unknown => net.a.engine.createConnection({ ...options, localId, packetKeys });
    assert.throws(make, { code: 'WL_INVALID_ARGUMENT', message: /packetKeys/ });
  }
});
