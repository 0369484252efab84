// Callers whose peer is gone by the time that they look.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import test from 'node:test';
import { Deadline } from '#lib/core/deadline.js';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { call } from '#lib/meeting/dial.js';

/** Takes one connection, breaks it at once, and listens no more. */
const breaker = `
  const server = require('node:net').createServer((socket) => {
    socket.resetAndDestroy();
    server.close();
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));`;

/** Stands still once connected, until the other process has broken the connection. */
function standStill(message: unknown): void {
  const { socket } = message as { readonly socket: Socket };
  socket.once('connect', () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500));
}

test('a connection that breaks before it is looked at is one to a peer that is lost, not to another host', async (t) => {
  const child = spawn(process.execPath, ['--eval', breaker], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exit = once(child, 'exit');
  const [said] = (await once(child.stdout, 'data')) as [Buffer];
  const port = Number(said);
  subscribe('net.client.socket', standStill);
  t.after(() => unsubscribe('net.client.socket', standStill));
  const credentials = credentialsOf('');
  assert.equal(credentials.kind, 'user');
  const called = call(
    { host: '127.0.0.1', port },
    {
      deadline: new Deadline(60_000),
      hello: { protocol: 'test', version: 1, credentials },
      body: {},
      who: 'breaker',
      retry: false,
    },
  );
  await assert.rejects(called, { code: 'WL_PEER_LOST', message: /Nobody listens at 127\.0\.0\.1/ });
  await exit;
});
