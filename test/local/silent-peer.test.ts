// A peer whose process reads nothing for long is not one whose machine has vanished.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test from 'node:test';
import { endWhenSilent } from '#lib/native/udp.js';

const SILENCE_MS = 3000;
const LONG_MS = 6000;

test('a connection whose other end does not read, and has no more room, stays', async () => {
  const server = createServer((socket) => socket.pause());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    const [other] = await accepted;
    endWhenSilent(socket, SILENCE_MS);
    const bytes = 32 << 20;
    socket.write(Buffer.alloc(bytes));
    // Longer than a silent peer is given: this one reads nothing, and its system answers.
    await new Promise((resolve) => setTimeout(resolve, LONG_MS));
    assert.equal(socket.destroyed, false);
    let read = 0;
    other.on('data', (chunk: Buffer) => (read += chunk.length));
    other.resume();
    socket.end();
    await once(other, 'end');
    assert.equal(read, bytes);
  } finally {
    socket.destroy();
    server.close();
  }
});
