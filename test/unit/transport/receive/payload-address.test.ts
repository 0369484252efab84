// Payload that is put into its place before its packet is taken in: everything arrives as it does otherwise, and nothing of a
// packet that is wrong, has come before, or must be looked at as a whole is put anywhere.
import assert from 'node:assert/strict';
import test from 'node:test';
import { DATA_HEADER_BYTES } from '#lib/transport/wire/packet-layout.js';
import { isEnded, Loopback, type LoopbackOptions, pattern } from '../support/loopback.js';

const BYTES = 60_000;

/** Sends a message, a write and a read; returns the network with them done. */
function runAll(options: LoopbackOptions): Loopback {
  const net = new Loopback({ direct: true, paths: 3, ...options });
  const [out, into] = [net.a.region(BYTES), net.b.region(BYTES)];
  const [from, to] = [net.a.region(BYTES), net.b.region(BYTES)];
  const [far, near] = [net.b.region(BYTES), net.a.region(BYTES)];
  for (const [index, { bytes }] of [out, from, far].entries()) pattern(bytes, index);
  const receive = net.b.connection.postReceive({ region: into, offset: 0, bytes: BYTES });
  const named = (region: typeof to) => ({ remoteRegion: region.id, remoteKey: region.key, remoteOffset: 0 });
  const requests = [
    net.a.connection.postSend({ region: out, offset: 0, bytes: BYTES }),
    net.a.connection.write({ region: from, offset: 0, bytes: BYTES, ...named(to) }),
    net.a.connection.read({ region: near, offset: 0, bytes: BYTES, ...named(far) }),
  ];
  assert.ok(net.run(() => requests.every((request) => isEnded(net.a, request)) && isEnded(net.b, receive)));
  for (const request of requests) assert.equal(net.a.engine.requestError(request), undefined);
  assert.equal(net.b.engine.receivedBytes(receive), BYTES);
  assert.deepEqual(into.bytes, out.bytes);
  assert.deepEqual(to.bytes, from.bytes);
  assert.deepEqual(near.bytes, far.bytes);
  return net;
}

test('messages, writes and answers to reads arrive, also where packets are lost, late or come twice', () => {
  const net = runAll({});
  assert.ok(net.placed >= Math.floor((3 * BYTES) / 1304), `${net.placed} packets were put into their place`);
  for (let seed = 1; seed <= 20; seed++) {
    assert.ok(runAll({ seed, loss: 0.05, reordering: 0.2, duplication: 0.1 }).placed > 0);
  }
});

test('packets that are checked as a whole, or come joined, are received as a whole', () => {
  assert.equal(runAll({ settings: { transportChecksum: 'full' } }).placed, 0);
  assert.equal(runAll({ settings: { transportAuthentication: true } }).placed, 0);
  const { placed, packets } = runAll({ join: true });
  assert.ok(placed < packets / 10, `${placed} of ${packets}`);
});

test('a header with a wrong bit, of another length, or of a packet that has come leads nowhere', () => {
  const sent: Uint8Array[] = [];
  const lose = ({ bytes }: { readonly bytes: Uint8Array }): boolean => {
    if (bytes.length > 1000) sent.push(bytes);
    return bytes.length > 1000;
  };
  const net = new Loopback({ direct: true, lose });
  const [out, into] = [net.a.region(5000), net.b.region(5000)];
  net.b.connection.postReceive({ region: into, offset: 0, bytes: 5000 });
  net.a.connection.postSend({ region: out, offset: 0, bytes: 5000 });
  assert.ok(net.run(() => sent.length >= 2, 100_000));
  const packet = sent[0] as Uint8Array;
  const ask = (header: Uint8Array, length = packet.length, peer = -1): number =>
    net.b.engine.payloadAddress(header, 0, length, peer);
  const header = packet.slice(0, DATA_HEADER_BYTES);
  assert.notEqual(ask(header), 0);
  const drops = { ...net.b.engine.drops };
  for (let bit = 0; bit < DATA_HEADER_BYTES * 8; bit++) {
    const wrong = header.slice();
    wrong[bit >> 3] = wrong[bit >> 3]! ^ (1 << (bit & 7));
    assert.equal(ask(wrong), 0, `bit ${bit}`);
  }
  assert.equal(ask(header, packet.length - 1), 0);
  assert.equal(ask(header, packet.length, 9), 0);
  // Nothing was counted, or taken in.
  assert.deepEqual(net.b.engine.drops, drops);
  assert.equal(net.b.connection.statistics.receivedSegments, 0);
  net.receive(net.b, packet);
  assert.equal(net.placed, 1);
  assert.equal(ask(header), 0);
});
