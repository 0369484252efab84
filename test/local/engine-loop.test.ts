// The loop of an engine over sockets of this machine: what ends its sleep, what does not, and which sockets it looks at.
import assert from 'node:assert/strict';
import test from 'node:test';
import { NativeBlock } from '#lib/native/library.js';
import { MessageBlock, sendMessages } from '#lib/native/udp.js';
import { readSettings } from '#lib/settings/settings.js';
import { Engine } from '#lib/transport/engine/engine.js';
import { UdpLoop } from '#lib/transport/io/udp/udp-io.js';
import { UdpSocket } from '#lib/transport/io/udp/udp-packet-io.js';

function openSocket(): UdpSocket {
  return new UdpSocket({ host: '127.0.0.1', bufferBytes: 65_536 });
}

for (const paths of [1, 2]) {
  test(`a ring of the doorbell ends one sleep, not all that follow, with ${paths} sockets`, () => {
    using loop = new UdpLoop({
      spinUs: 0,
      engine: (io) => new Engine({ io, settings: readSettings() }),
    });
    const sockets = Array.from({ length: paths }, openSocket);
    loop.addPeer(0, { ends: sockets.map(({ fd }) => fd), rails: 1, segments: 1 });
    loop.doorbell.ring();
    const begin = performance.now();
    loop.sleep(60_000_000);
    assert.equal(loop.step(), false);
    loop.sleep(20_000);
    // If the ring were still heard, both would be over in microseconds.
    assert.ok(performance.now() - begin >= 19);
  });
}

/** Two sockets in a loop, and what sends a datagram to each: too short to be a packet, so that the engine counts it. */
function openPair(): { loop: UdpLoop; send: (path: number) => void; close: () => void } {
  const loop = new UdpLoop({ spinUs: 0, engine: (io) => new Engine({ io, settings: readSettings() }) });
  const sockets = [openSocket(), openSocket()];
  const senders = sockets.map((socket) => {
    const sender = openSocket();
    sender.connect(socket);
    socket.connect(sender);
    return sender;
  });
  loop.addPeer(0, { ends: sockets.map(({ fd }) => fd), rails: 1, segments: 1 });
  const memory = new NativeBlock(64);
  const block = new MessageBlock({ messages: 1, iovecsPerMessage: 1 });
  const send = (path: number): void => {
    block.setIovec(0, 0, memory.address, 8);
    block.setIovecCount(0, 1);
    assert.equal(sendMessages((senders[path] as UdpSocket).fd, block.addressOf(0), 1), 1);
  };
  const close = (): void => {
    for (const sender of senders) sender[Symbol.dispose]();
    loop[Symbol.dispose]();
  };
  return { loop, send, close };
}

test('a socket that has a packet at every look does not keep the loop from the others', () => {
  const { loop, send, close } = openPair();
  for (let round = 0; round < 10; round += 1) {
    send(0);
    loop.step();
  }
  assert.equal(loop.engine.drops.short, 10);
  send(1);
  for (let round = 0; round < 4; round += 1) {
    send(0);
    loop.step();
  }
  assert.equal(loop.engine.drops.short, 15);
  close();
});

test('a look that comes a while after the one before finds a packet of any socket', () => {
  const { loop, send, close } = openPair();
  let sent = 0;
  for (const more of [0, 1, 2, 3]) {
    for (let round = 0; round < 6 + more; round += 1) {
      send(0);
      loop.step();
    }
    loop.sleep(2000);
    send(1);
    loop.step();
    sent += 7 + more;
    assert.equal(loop.engine.drops.short, sent, `after ${6 + more} rounds`);
  }
  close();
});

test('a ring of the doorbell does not hide that packets come from one socket alone', () => {
  const { loop, send, close } = openPair();
  loop.doorbell.ring();
  send(0);
  loop.step();
  send(1);
  send(0);
  loop.step();
  assert.equal(loop.engine.drops.short, 2, 'the socket of the first packet is looked at first');
  loop.step();
  loop.step();
  assert.equal(loop.engine.drops.short, 3);
  close();
});

test('a peer that was taken out leaves no closed ports behind for the next of its number', () => {
  using loop = new UdpLoop({
    spinUs: 0,
    engine: (io) => new Engine({ io, settings: readSettings() }),
  });
  const socket = openSocket();
  const gone = openSocket();
  socket.connect(gone);
  loop.addPeer(0, { ends: [socket.fd], rails: 1, segments: 1 });
  gone[Symbol.dispose]();
  const message = new MessageBlock({ messages: 1, iovecsPerMessage: 1 });
  const bytes = new NativeBlock(8);
  message.setIovec(0, 0, bytes.address, 8);
  message.setIovecCount(0, 1);
  assert.equal(sendMessages(socket.fd, message.addressOf(0), 1), 1);
  loop.step();
  assert.deepEqual(loop.refused, [0]);
  loop.removePeer(0);
  assert.deepEqual(loop.refused, []);
});
