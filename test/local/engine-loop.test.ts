// The loop of an engine over sockets of this machine: what ends its sleep, and what does not.
import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings } from '#lib/settings/settings.js';
import { Engine } from '#lib/transport/engine/engine.js';
import { UdpLoop } from '#lib/transport/io/udp/udp-loop.js';
import { UdpSocket } from '#lib/transport/io/udp/udp-socket.js';

for (const paths of [1, 2]) {
  test(`a ring of the doorbell ends one sleep, not all that follow, with ${paths} sockets`, () => {
    using loop = new UdpLoop({
      spinUs: 0,
      engine: (io) => new Engine({ io, settings: readSettings() }),
    });
    const sockets = Array.from({ length: paths }, () => new UdpSocket({ host: '127.0.0.1', bufferBytes: 65_536 }));
    loop.addPeer(0, { descriptors: sockets.map(({ fd }) => fd), segments: 1 });
    loop.doorbell.ring();
    const begin = performance.now();
    loop.sleep(60_000_000);
    assert.equal(loop.step(), false);
    loop.sleep(20_000);
    // If the ring were still heard, both would be over in microseconds.
    assert.ok(performance.now() - begin >= 19);
  });
}
