// What goes wrong between two engines: small buffers, cancelled requests, dead paths, dead peers, closed connections.
import assert from 'node:assert/strict';
import test from 'node:test';
import { packetKinds, packetPrefix } from '#lib/transport/wire/packet-layout.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import type { PacketIo } from '#lib/transport/io/packet-io.js';
import { isEnded, Loopback, pattern } from './support/loopback.js';

test('a buffer smaller than its message fails both ends, and the flow goes on', () => {
  const net = new Loopback({ loss: 0.02 });
  const from = net.a.region(10_000);
  const to = net.b.region(10_000);
  const receives = [100, 5000].map((bytes) => net.b.connection.postReceive({ region: to, offset: 0, bytes }));
  const sends = [5000, 5000].map((bytes) => net.a.connection.postSend({ region: from, offset: 0, bytes }));
  assert.ok(net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h))));
  const [sendError, receiveError] = [
    net.a.engine.requestError(sends[0] as number),
    net.b.engine.requestError(receives[0] as number),
  ];
  assert.equal(sendError?.code, 'WL_CAPACITY');
  assert.match(sendError?.message ?? '', /Cannot send 5000 bytes to rank 1 \(b\): .* room for 100/);
  assert.equal(receiveError?.code, 'WL_CAPACITY');
  assert.match(receiveError?.message ?? '', /Cannot receive 100 bytes from rank 0 \(a\): the message has 5000 bytes/);
  assert.equal(net.a.engine.poll(sends[1] as number), requestStatus.done);
  assert.equal(net.b.engine.poll(receives[1] as number), requestStatus.done);
});

test('cancel() of either end fails the other, before and during the message', () => {
  for (const side of ['a', 'b'] as const) {
    for (const after of [0, 5, 40, 100]) {
      const net = new Loopback({ settings: { transportWindowBytes: 16_384 } });
      const from = net.a.region(200_000);
      const to = net.b.region(200_000);
      const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 200_000 });
      const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 200_000 });
      net.run(() => false, after);
      assert.ok(net[side].connection.cancel(side === 'a' ? send : receive));
      assert.equal(net[side].connection.cancel(side === 'a' ? send : receive), false);
      if (side === 'a' && after < 10) {
        // Nothing has met yet: the receive waits for the next message.
        assert.equal(net.b.engine.poll(receive), requestStatus.pending);
        continue;
      }
      if (side === 'b' && after < 10) continue;
      assert.ok(
        net.run(() => isEnded(net.a, send) && isEnded(net.b, receive), 5_000_000),
        `${side} ${after}`,
      );
      const own = side === 'a' ? net.a.engine.requestError(send) : net.b.engine.requestError(receive);
      const other = side === 'a' ? net.b.engine.requestError(receive) : net.a.engine.requestError(send);
      assert.equal(own?.code, 'WL_CLOSED');
      assert.equal(other?.code, 'WL_PEER_FAILED');
      const again = net.b.connection.postReceive({ region: to, offset: 0, bytes: 200_000 });
      const resend = net.a.connection.postSend({ region: from, offset: 0, bytes: 150_000 });
      assert.ok(net.run(() => isEnded(net.a, resend) && isEnded(net.b, again)));
      assert.equal(net.b.engine.poll(again), requestStatus.done);
    }
  }
});

test('a withdrawn receive is not met by a later send', () => {
  const net = new Loopback();
  const from = net.a.region(1000);
  const to = net.b.region(1000);
  pattern(from.bytes);
  const first = net.b.connection.postReceive({ region: to, offset: 0, bytes: 10 });
  net.run(() => false, 1000);
  net.b.connection.cancel(first);
  net.run(() => false, 1000);
  const second = net.b.connection.postReceive({ region: to, offset: 0, bytes: 1000 });
  const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 1000 });
  assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, second)));
  assert.deepEqual(to.bytes, from.bytes);
});

test('a peer that dies fails all requests of both ends, in time, by name', () => {
  const settings = { transportGiveUpMs: 2000, transportKeepAliveMs: 300, transportWindowBytes: 65_536 };
  for (const dying of ['a', 'b'] as const) {
    const net = new Loopback({ settings, paths: 4 });
    const from = net.a.region(2_000_000);
    const to = net.b.region(2_000_000);
    const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 2_000_000 });
    const idle = net.b.connection.postReceive({ region: to, offset: 0, bytes: 2_000_000, flow: 9 });
    const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 2_000_000 });
    assert.equal(
      net.run(() => false, 100),
      false,
    );
    net.gone.add(net[dying]);
    const left = dying === 'a' ? net.b : net.a;
    const handles = dying === 'a' ? [receive, idle] : [send];
    const begin = net.now;
    assert.ok(net.run(() => handles.every((handle) => isEnded(left, handle)), 10_000_000));
    assert.ok(net.now - begin <= 2_400_000, `${net.now - begin}`);
    assert.equal(left.ended.length, 1);
    assert.match(left.connection.error?.message ?? '', dying === 'a' ? /rank 0 \(a\)/ : /rank 1 \(b\)/);
    for (const handle of handles) assert.equal(left.engine.requestError(handle)?.code, 'WL_PEER_LOST');
    assert.throws(() => left.connection.flush(), { code: 'WL_PEER_LOST' });
  }
});

test('an idle connection sends nothing; one with a receive posted asks now and then', () => {
  const net = new Loopback();
  const to = net.b.region(100);
  const from = net.a.region(100);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 100 });
  net.run(() => false, 10_000_000);
  assert.ok(net.packets > 10 && net.packets < 60, `${net.packets} packets in 10 s`);
  assert.equal(net.b.engine.poll(receive), requestStatus.pending);
  const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 100 });
  assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive), 1_000_000));
  net.run(() => false, 1_000_000);
  const before = net.packets;
  assert.equal(net.a.engine.nextDeadline(), Infinity);
  assert.equal(net.b.engine.nextDeadline(), Infinity);
  net.run(() => false, 100_000_000);
  assert.equal(net.packets, before);
});

test('close() behind a finished message does not take it back, and fails the rest', () => {
  for (let seed = 1; seed <= 20; seed++) {
    const net = new Loopback({ seed, loss: 0.2 });
    const from = net.a.region(50_000);
    const to = net.b.region(50_000);
    const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 50_000 });
    const other = net.b.connection.postReceive({ region: to, offset: 0, bytes: 50_000 });
    const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 50_000 });
    assert.ok(net.run(() => isEnded(net.b, receive)));
    net.b.connection.close();
    assert.equal(net.b.engine.requestError(other)?.code, 'WL_CLOSED');
    assert.throws(() => net.b.connection.postReceive({ region: to, offset: 0, bytes: 1 }), { code: 'WL_CLOSED' });
    assert.ok(net.run(() => isEnded(net.a, send)));
    assert.equal(net.a.engine.poll(send), requestStatus.done, `seed ${seed}`);
    // A side with something outstanding hears of the end, even if the first packet that said so was lost.
    const late = net.a.connection.error === undefined ? net.a.connection.flush() : undefined;
    const write =
      net.a.connection.error === undefined
        ? net.a.connection.postSend({ region: from, offset: 0, bytes: 1 })
        : undefined;
    if (write !== undefined) {
      assert.ok(net.run(() => isEnded(net.a, write), 9_000_000));
      assert.equal(net.a.engine.requestError(write)?.code, 'WL_CLOSED');
    }
    assert.ok(late === undefined || isEnded(net.a, late));
  }
});

/** Messages of 1 MB that eight paths carry in 100 ms, beginning with the death of one of them if asked. */
function messagesIn100Ms(dead: boolean): number {
  const net = new Loopback({ paths: 8, settings: { transportWindowBytes: 262_144 } });
  const from = net.a.region(1_000_000);
  const to = net.b.region(1_000_000);
  let sent = 0;
  const next = (): number => {
    net.b.connection.postReceive({ region: to, offset: 0, bytes: 1_000_000 });
    sent++;
    return net.a.connection.postSend({ region: from, offset: 0, bytes: 1_000_000 });
  };
  let handle = next();
  net.run(() => isEnded(net.a, handle));
  if (dead) net.dead.add(3);
  const end = net.now + 100_000;
  const begin = sent;
  net.run(() => {
    while (isEnded(net.a, handle)) handle = next();
    return net.now >= end;
  }, 200_000);
  if (dead) assert.equal(net.a.connection.statistics.paths[3]?.alive, false);
  return sent - begin;
}

test('close() behind a finished message does not fail it, though its ack and two ends are lost', () => {
  let isClosed = false;
  let ends = 0;
  const net = new Loopback({
    paths: 4,
    // Everything that `b` says of the message, but for its last packet.
    lose: ({ to, bytes }) => {
      const isAck = to === net.a && bytes[packetPrefix.offset.kind] === packetKinds.ack;
      if (isAck && isClosed) ends++;
      return isAck && ends < 3;
    },
  });
  const receive = net.b.connection.postReceive({ region: net.b.region(1000), offset: 0, bytes: 1000 });
  const send = net.a.connection.postSend({ region: net.a.region(1000), offset: 0, bytes: 1000 });
  assert.ok(net.run(() => isEnded(net.b, receive)));
  assert.equal(isEnded(net.a, send), false);
  isClosed = true;
  net.b.connection.close();
  assert.ok(net.run(() => net.a.ended.length > 0, 1000));
  assert.equal(ends, 3);
  assert.equal(net.a.engine.poll(send), requestStatus.done);
  assert.equal(net.a.ended[0]?.code, 'WL_CLOSED');
});

test('one dead path of eight is found, and costs little', () => {
  const [whole, broken] = [messagesIn100Ms(false), messagesIn100Ms(true)];
  assert.ok(broken >= 0.85 * whole, `${broken} messages with a dead path, ${whole} without`);
});

test('a dead path that comes back is used again', () => {
  const net = new Loopback({ paths: 2, delay: () => 1000 });
  const from = net.a.region(500_000);
  const to = net.b.region(500_000);
  const message = (): void => {
    net.b.connection.postReceive({ region: to, offset: 0, bytes: 500_000 });
    const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 500_000 });
    assert.ok(net.run(() => isEnded(net.a, send)));
  };
  net.dead.add(1);
  message();
  const isAlive = (): boolean => net.a.connection.statistics.paths[1]?.alive === true;
  assert.equal(isAlive(), false);
  net.dead.delete(1);
  const before = net.a.connection.statistics.paths[1]?.sentSegments ?? 0;
  for (let round = 0; round < 200 && !isAlive(); round++) message();
  for (let round = 0; round < 5; round++) message();
  assert.ok((net.a.connection.statistics.paths[1]?.sentSegments ?? 0) > before);
});

test('release() of a region that a peer reads or that sends fails the peer too', () => {
  const net = new Loopback({ settings: { transportWindowBytes: 4096 } });
  const there = net.b.region(500_000);
  const here = net.a.region(500_000);
  const read = net.a.connection.read({
    region: here,
    offset: 0,
    bytes: 500_000,
    remoteRegion: there.id,
    remoteKey: there.key,
    remoteOffset: 0,
  });
  const receive = net.a.connection.postReceive({ region: here, offset: 0, bytes: 500_000 });
  const send = net.b.connection.postSend({ region: there, offset: 0, bytes: 500_000 });
  net.run(() => false, 100);
  net.b.engine.release(there);
  assert.ok(net.run(() => isEnded(net.a, read) && isEnded(net.a, receive), 1_000_000));
  assert.equal(net.b.engine.requestError(send)?.code, 'WL_CLOSED');
  assert.equal(net.a.engine.requestError(read)?.code, 'WL_PEER_FAILED');
  assert.equal(net.a.engine.requestError(receive)?.code, 'WL_PEER_FAILED');
});

test('release() of a region fails what uses it', () => {
  const net = new Loopback();
  const to = net.b.region(100);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 100 });
  net.run(() => false, 100);
  net.b.engine.release(to);
  assert.equal(net.b.engine.requestError(receive)?.code, 'WL_CLOSED');
  assert.throws(() => net.b.connection.postReceive({ region: to, offset: 0, bytes: 1 }), {
    code: 'WL_INVALID_ARGUMENT',
  });
});

test('joined segments that come twice, after their message is over, fail nothing', () => {
  const net: Loopback = new Loopback({
    join: true,
    duplication: 1,
    // The sender learns what came only after it came again.
    lose: ({ to, bytes }) => to.name === 'a' && bytes[packetPrefix.offset.kind] === packetKinds.ack && net.now < 2000,
  });
  const from = net.a.region(20_000);
  const to = net.b.region(20_000);
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 20_000 });
  const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 20_000 });
  assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive)));
  assert.equal(net.a.engine.requestError(send), undefined);
  assert.ok(net.b.connection.statistics.duplicateSegments > 10);
});

test('a signal that waits for a segment is forgotten with its region', () => {
  const net: Loopback = new Loopback({
    // The write before the signal does not arrive at first.
    lose: ({ to, bytes }) => to.name === 'b' && net.now < 3000 && bytes.length > 500,
  });
  const from = net.a.region(1000);
  const target = net.b.region(1000);
  const counter = net.b.region(8);
  const remote = { remoteRegion: target.id, remoteKey: target.key, remoteOffset: 0 };
  const write = net.a.connection.write({ region: from, offset: 0, bytes: 1000, ...remote });
  const cell = { remoteRegion: counter.id, remoteKey: counter.key, remoteOffset: 0 };
  const signal = net.a.connection.signal({ ...cell, add: 7 });
  net.run(() => false, 500);
  net.b.engine.release(counter);
  assert.ok(net.run(() => isEnded(net.a, write) && isEnded(net.a, signal)));
  assert.deepEqual(counter.bytes, new Uint8Array(8));
  assert.equal(net.a.engine.poll(write), requestStatus.done);
});

test('a path that is much slower than the others is not taken for dead once its round trip is known', () => {
  const net = new Loopback({ paths: 4, delay: (path) => (path === 3 ? 10_000 : 20), rate: 200 });
  const from = net.a.region(20_000_000);
  const to = net.b.region(20_000_000);
  const lost: number[] = [];
  for (let message = 0; message < 3; message++) {
    const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 20_000_000 });
    const send = net.a.connection.postSend({ region: from, offset: 0, bytes: 20_000_000 });
    assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, receive)));
    const path = net.a.connection.statistics.paths[3];
    lost.push(path?.lostSegments ?? 0);
  }
  assert.equal(lost[2], lost[0]);
});

test('a failed request ends once no device reads its memory, and only it waits', () => {
  const net = new Loopback({ settings: { transportWindowBytes: 16_384 } });
  const read = net.a.region(200_000);
  const other = net.a.region(10_000);
  const to = net.b.region(210_000);
  let isRead = true;
  const io: PacketIo = net.a;
  const asked: (number | undefined)[] = [];
  io.readersOf = (region, peer) => {
    asked.push(peer);
    return region === read && isRead ? { areThrough: () => !isRead } : undefined;
  };
  const receive = net.b.connection.postReceive({ region: to, offset: 0, bytes: 200_000 });
  const send = net.a.connection.postSend({ region: read, offset: 0, bytes: 200_000 });
  net.run(() => false, 100);
  assert.ok(net.a.connection.cancel(send));
  assert.deepEqual(asked, [1], 'once, and of its peer alone');
  const small = net.b.connection.postReceive({ region: to, offset: 200_000, bytes: 10_000 });
  const next = net.a.connection.postSend({ region: other, offset: 0, bytes: 10_000 });
  assert.ok(net.run(() => isEnded(net.a, next) && isEnded(net.b, small) && isEnded(net.b, receive)));
  assert.equal(net.a.engine.poll(next), requestStatus.done, 'others go on');
  net.a.engine.forget(send);
  assert.equal(net.a.engine.poll(send), requestStatus.pending);
  assert.ok(net.a.engine.hasReaders(net.a.connection));
  assert.equal(net.a.engine.release(read), false);
  isRead = false;
  assert.ok(net.run(() => isEnded(net.a, send), 10_000));
  assert.equal(net.a.engine.requestError(send)?.code, 'WL_CLOSED');
  assert.equal(net.a.engine.hasReaders(net.a.connection), false);
  assert.equal(net.a.engine.release(read), true);
});
