// Receiver-driven admission: the bound holds, senders share it, and receives that nobody claims starve nobody.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  controlHeader,
  controlKinds,
  controlRecord,
  dataHeader,
  packetKinds,
  packetPrefix,
} from '#lib/transport/wire/packet-layout.js';
import { getWide } from '#lib/abi/layout.js';
import { type EngineHandle, requestStatus, type TransportConnection } from '#lib/transport/engine/transport-engine.js';
import { isEnded, Loopback } from './support/loopback.js';

const MESSAGE = 400_000;
const settings = { transportCtsBytes: 262_144, transportCtsChunkBytes: 32_768, transportWindowBytes: 65_536 };

/** Control records of a packet, if it has any. */
function controlRecords(bytes: Uint8Array): { readonly kind: number; readonly bytes: number }[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  if (view.getUint8(packetPrefix.offset.kind) !== packetKinds.control) return [];
  return Array.from({ length: view.getUint16(controlHeader.offset.records, true) }, (_, index) => {
    const at = controlHeader.size + index * controlRecord.size;
    const kind = view.getUint16(at + controlRecord.offset.kind, true);
    return { kind, bytes: getWide(view, at + controlRecord.offset.bytes) };
  });
}

function senders(net: Loopback, count: number): [TransportConnection, TransportConnection][] {
  return Array.from({ length: count }, () => net.connect());
}

test('outstanding grants of all senders together never exceed the bound, and all get their share', () => {
  for (const loss of [0, 0.03]) {
    const net = new Loopback({ loss, paths: 2, settings });
    const from = net.a.region(MESSAGE);
    const to = net.b.region(MESSAGE);
    const pairs = senders(net, 8);
    const receives = pairs.map(([, b]) => b.postReceive({ region: to, offset: 0, bytes: MESSAGE }));
    const sends = pairs.map(([a]) => a.postSend({ region: from, offset: 0, bytes: MESSAGE }));
    const { admission } = net.b.engine;
    let most = 0;
    let shareAtFirst = 1;
    const done = net.run(() => {
      const open = admission.claimedBytes + admission.unclaimedBytes;
      most = Math.max(most, open);
      assert.ok(open >= 0 && open <= settings.transportCtsBytes, `${open} bytes are granted`);
      const received = receives.map((handle) => net.b.engine.receivedBytes(handle) / MESSAGE);
      if (shareAtFirst === 1 && received.includes(1)) shareAtFirst = Math.min(...received);
      return sends.every((handle) => isEnded(net.a, handle)) && receives.every((handle) => isEnded(net.b, handle));
    });
    assert.ok(done);
    assert.ok(most > settings.transportCtsBytes / 2);
    if (loss === 0) assert.ok(shareAtFirst > 0.7, `the slowest had ${shareAtFirst} when the first was done`);
    assert.deepEqual([admission.claimedBytes, admission.unclaimedBytes], [0, 0]);
  }
});

test('many receives that wait for idle peers do not keep a busy one waiting', () => {
  const net = new Loopback({ settings });
  const from = net.a.region(MESSAGE);
  const to = net.b.region(MESSAGE);
  const pairs = senders(net, 6);
  for (const [, b] of pairs.slice(1)) {
    for (let index = 0; index < 20; index++) b.postReceive({ region: to, offset: 0, bytes: MESSAGE });
  }
  net.run(() => false, 100_000);
  assert.ok(net.b.engine.admission.unclaimedBytes <= settings.transportCtsBytes / 2);
  const [a, b] = pairs[0] as [TransportConnection, TransportConnection];
  const receive = b.postReceive({ region: to, offset: 0, bytes: MESSAGE });
  const send = a.postSend({ region: from, offset: 0, bytes: MESSAGE });
  assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive), 1_000_000));
  assert.equal(net.b.engine.poll(receive), requestStatus.done);
});

test('a message without a grant does not hold up those behind it that have one', () => {
  const net = new Loopback({ segmentBytes: 512, settings: { transportCtsBytes: 4096, transportWindowBytes: 1024 } });
  const from = net.a.region(4000);
  const to = net.b.region(4000);
  const sends = [2049, 3709].map((bytes) => net.a.connection.postSend({ region: from, offset: 0, bytes }));
  const receives = [2049, 3709].map((bytes) => net.b.connection.postReceive({ region: to, offset: 0, bytes }));
  assert.ok(
    net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h)), 1_000_000),
  );
});

test('a short message gives the rest of its grant back', () => {
  const net = new Loopback({ settings });
  const from = net.a.region(MESSAGE);
  const to = net.b.region(MESSAGE);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: MESSAGE });
  const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 100 });
  assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive)));
  assert.equal(net.b.engine.receivedBytes(receive), 100);
  assert.deepEqual([net.b.engine.admission.claimedBytes, net.b.engine.admission.unclaimedBytes], [0, 0]);
});

test('a message of no bytes asks for no grant, and the record that it answers is not repeated', () => {
  const seen: { readonly kind: number; readonly bytes: number }[] = [];
  const net = new Loopback({
    settings: { ...settings, transportCtsChunkBytes: 131_072, transportMinRtoUs: 1000 },
    lose: ({ bytes }) => {
      seen.push(...controlRecords(bytes));
      return bytes[packetPrefix.offset.kind] === packetKinds.data && bytes.length > 100;
    },
  });
  const from = net.a.region(MESSAGE);
  const to = net.b.region(MESSAGE);
  // A receive without a message and a message that does not get through hold all that may be granted.
  const [other, otherEnd] = net.connect();
  for (const flow of [0, 1]) otherEnd.postReceive({ region: to, offset: 0, bytes: MESSAGE, flow });
  other.postSend({ region: from, offset: 0, bytes: MESSAGE, flow: 1 });
  net.run(() => net.b.engine.admission.claimedBytes > 0, 1000);
  seen.length = 0;
  const { a, b } = net;
  const ends = [MESSAGE, 0].map((bytes, flow) => [
    b.connection.postReceive({ region: to, offset: 0, bytes: bytes, flow }),
    a.connection.postSend({ region: from, offset: 0, bytes, flow }),
  ]);
  net.run(() => false, 6000);
  const [receive, send] = ends[1] as [EngineHandle, EngineHandle];
  assert.deepEqual([b.engine.poll(receive), a.engine.poll(send)], [requestStatus.done, requestStatus.done]);
  assert.equal(b.engine.poll(ends[0]![0]!), requestStatus.pending);
  assert.deepEqual(seen, [
    { kind: controlKinds.clearToSend, bytes: MESSAGE },
    { kind: controlKinds.clearToSend, bytes: 0 },
    { kind: controlKinds.requestToSend, bytes: MESSAGE },
  ]);
});

test('a packet for a receive that was not announced is refused', () => {
  const taken: Uint8Array[] = [];
  const net = new Loopback({
    settings: { transportChecksum: 'none', transportEagerBytes: 0 },
    lose: ({ bytes, to }) =>
      to.name === 'b' && bytes[packetPrefix.offset.kind] === packetKinds.data && taken.push(bytes) > 0,
  });
  const region = net.a.region(0);
  const to = net.b.region(100);
  const { connection, engine } = net.b;
  connection.postReceive({ region: to, offset: 0, bytes: 100 });
  net.a.connection.postSend({ region, offset: 0, bytes: 0 });
  assert.ok(net.run(() => taken.length > 0, 1000));
  const packet = taken[0] as Uint8Array;
  const later = connection.postReceive({ region: to, offset: 0, bytes: 100 });
  new DataView(packet.buffer).setUint32(dataHeader.offset.target, later, true);
  net.receive(net.b, packet);
  assert.equal(engine.poll(later), requestStatus.pending);
  assert.equal(engine.drops.target, 1);
});

test('a thousand receives, then a thousand sends, on several flows, in order', () => {
  const net = new Loopback({ paths: 4, loss: 0.02, settings });
  const from = net.a.region(4000);
  const to = net.b.region(400 * 1000);
  const receives: number[] = [];
  const sends: number[] = [];
  for (let index = 0; index < 1000; index++) {
    receives.push(net.b.connection.postReceive({ region: to, offset: index * 400, bytes: 400, flow: index % 3 }));
  }
  for (let index = 0; index < 1000; index++) {
    new DataView(from.bytes.buffer).setUint32(4 * index, index, true);
    sends.push(net.a.connection.postSend({ region: from, offset: 4 * index, bytes: 4, flow: index % 3 }));
  }
  assert.ok(net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h))));
  const view = new DataView(to.bytes.buffer);
  for (let index = 0; index < 1000; index++) assert.equal(view.getUint32(index * 400, true), index);
});

test('more receives than a peer keeps in mind are announced as messages come, and hold up no read', () => {
  const net = new Loopback();
  const from = net.a.region(100);
  const to = net.b.region(100);
  const place = { region: to, offset: 0, bytes: 100 };
  const receives = Array.from({ length: 6000 }, () => net.b.connection.postReceive(place));
  const remote = { remoteRegion: from.id, remoteKey: from.key, remoteOffset: 0 };
  const read = net.b.connection.read({ ...place, ...remote });
  net.run(() => false, 1_000_000);
  assert.equal(net.b.engine.poll(read), requestStatus.done);
  // One of the announced and one of the others are withdrawn.
  assert.ok(net.b.connection.cancel(receives[0] as number));
  assert.ok(net.b.connection.cancel(receives[5999] as number));
  net.run(() => false, 1000);
  const sends = Array.from({ length: 5998 }, () => net.a.connection.postSend({ ...place, region: from }));
  assert.ok(net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h))));
  assert.ok(sends.every((handle) => net.a.engine.poll(handle) === requestStatus.done));
  assert.deepEqual([net.a.connection.error, net.b.connection.error], [undefined, undefined]);
});
