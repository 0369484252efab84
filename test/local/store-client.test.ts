import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import test from 'node:test';
import { join } from 'weftline/world';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { LinkedStore } from '#lib/world/store.js';
import { StoreClient } from '#lib/world/store-client.js';
import { StoreServer } from '#lib/world/store-server.js';
import { freePort } from '../support/free-port.ts';

const maxValueBytes = 4 << 20;
const credentials = credentialsOf('token');
const settings = { maxStrangers: 256, greetingMs: 10_000, timeoutMs: 120_000 };

async function serve(size: number, jobPrefix?: string) {
  const listen = { host: '127.0.0.1', port: 0 };
  const credential = credentials.read();
  const server = await StoreServer.listen({
    listen,
    size,
    credential,
    jobId: 'job',
    maxValueBytes,
    settings,
    ...(jobPrefix === undefined ? {} : { jobPrefix }),
  });
  const clients = await Promise.all(
    Array.from({ length: size }, (_, rank) =>
      StoreClient.connect({ host: '127.0.0.1', port: server.port, rank, size, credentials, timeoutMs: 120_000 }),
    ),
  );
  const stores = clients.map((client) => new LinkedStore(client, { timeoutMs: 120_000, maxValueBytes }));
  return {
    server,
    clients: clients as [StoreClient, StoreClient, ...StoreClient[]],
    stores: stores as [LinkedStore, LinkedStore, ...LinkedStore[]],
  };
}

test('values up to the limit travel whole, larger ones are refused before they do', async () => {
  const { server, clients, stores } = await serve(2);
  const value = Uint8Array.from({ length: maxValueBytes }, (_, index) => (index * 31) & 255);
  await stores[0].set('large', value);
  assert.ok(Buffer.from(await stores[1].get('large')).equals(Buffer.from(value)));
  const other = value.map((byte) => byte ^ 1);
  assert.equal((await stores[1].compareAndSet('large', value, other)).swapped, true);
  await assert.rejects(stores[0].set('larger', new Uint8Array(maxValueBytes + 1)), { code: 'WL_CAPACITY' });
  await Promise.all(clients.map((client) => client.close()));
  await server.stop(1_000);
});

test('an abort reaches the server, which forgets the wait', async () => {
  const { server, clients, stores } = await serve(2);
  const abort = new AbortController();
  const aborted = assert.rejects(stores[0].barrier('b', { signal: abort.signal }), { message: 'enough' });
  await stores[0].set('sync', new Uint8Array());
  abort.abort(new Error('enough'));
  await aborted;
  await stores[0].set('sync', new Uint8Array());
  await assert.rejects(stores[1].barrier('b', { timeoutMs: 5 }), {
    code: 'WL_TIMEOUT',
    message: /rank 0 did not come/,
  });
  await Promise.all(clients.map((client) => client.close()));
  await server.stop(1_000);
});

test('a client that closed, and one whose server is gone, say so', async () => {
  const { server, clients, stores } = await serve(2);
  const pending = assert.rejects(stores[0].get('never'), { code: 'WL_CLOSED' });
  await clients[0].close();
  await clients[0].close();
  await pending;
  await assert.rejects(stores[0].add('n', 1), { code: 'WL_CLOSED' });
  assert.equal(clients[0].peers.watch([0, 1]).aborted, false);
  const lost = { code: 'WL_PEER_LOST', message: /^Rank 0, which holds the rendezvous store at 127\.0\.0\.1:/ };
  const waiting = assert.rejects(stores[1].get('never', { from: [1] }), lost);
  await server.stop(0);
  await waiting;
  await assert.rejects(stores[1].add('n', 1), lost);
  assert.equal(clients[1].peers.watch([1]).aborted, true);
});

test('a rank that joins again waits until the others have left, and fails if one is lost', async () => {
  const { server, clients } = await serve(2, 'job');
  const come = (rank: number) =>
    StoreClient.connect({ host: '127.0.0.1', port: server.port, rank, size: 2, credentials, timeoutMs: 120_000 });
  await clients[0].close();
  const early = come(0);
  await clients[1].close();
  const [first, second] = await Promise.all([early, come(1)]);
  assert.equal(first.jobId, second.jobId);
  assert.match(first.jobId, /^job[0-9a-f]{10}$/);
  await assert.rejects(come(1), { code: 'WL_RANK_TAKEN' });
  await first.close();
  const vain = assert.rejects(come(0), { code: 'WL_PEER_FAILED', rank: 1, message: /on purpose/ });
  await second.close(new Error('on purpose'));
  await vain;
  await server.stop(0);
});

test('a rank that joins again before rank 0 has left finds the next store of rank 0', async () => {
  const { server, clients } = await serve(3);
  const { port } = server;
  const come = (rank: number) =>
    StoreClient.connect({ host: '127.0.0.1', port, rank, size: 3, credentials, timeoutMs: 120_000 });
  await clients[1].close();
  const again = come(1);
  // Another process with the number of a rank that is there, or with that of the one that serves the store, is refused.
  await assert.rejects(come(2), { code: 'WL_RANK_TAKEN' });
  await clients[0].close();
  await assert.rejects(come(0), { code: 'WL_RANK_TAKEN' });
  const stopped = server.stop(10_000);
  await clients[2]?.close();
  await stopped;
  const listen = { host: '127.0.0.1', port };
  const credential = credentials.read();
  const next = await StoreServer.listen({ listen, size: 3, credential, jobId: 'next', maxValueBytes, settings });
  const second = await again;
  assert.equal(second.jobId, 'next');
  await second.close();
  await next.stop(0);
});

test('a rank that joins again fails if another rank of the world that it has left is lost', async () => {
  const { server, clients } = await serve(2);
  const { port } = server;
  await clients[1].close();
  const again = StoreClient.connect({ host: '127.0.0.1', port, rank: 1, size: 2, credentials, timeoutMs: 120_000 });
  const vain = assert.rejects(again, { code: 'WL_PEER_FAILED', rank: 0, message: /on purpose/ });
  await clients[0].close(new Error('on purpose'));
  await vain;
  await server.stop(0);
});

test('stop() waits for ranks that are still there', async () => {
  const { server, clients, stores } = await serve(2);
  const stopped = server.stop(10_000);
  assert.equal(await stores[0].add('n', 1), 1);
  await clients[0].close();
  assert.equal(await stores[1].add('n', 1), 2);
  await clients[1].close();
  await stopped;
});

test('a rank that cannot reach rank 0 says where it looked', async () => {
  const port = await freePort();
  const environment = { RANK: '1', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(port) };
  await assert.rejects(join({ environment, timeoutMs: 1000 }), {
    code: 'WL_TIMEOUT',
    message: new RegExp(`Rank 1 could not reach rank 0 at 127\\.0\\.0\\.1:${port} within 1000 ms .*ECONNREFUSED`),
  });
  await assert.rejects(join({ environment, signal: AbortSignal.abort(new Error('enough')) }), { message: 'enough' });
  const abort = new AbortController();
  const joining = assert.rejects(join({ environment, signal: abort.signal }), { message: 'enough' });
  // Whenever it comes: nobody answers.
  setTimeout(() => abort.abort(new Error('enough')), 30);
  await joining;
});

test('another service on the port, or the store of another job, is told apart', async () => {
  const service = createServer((socket) => socket.on('error', () => {}).write('SSH-2.0-OpenSSH_9.9\r\n'));
  service.listen(0, '127.0.0.1');
  await once(service, 'listening');
  const { port } = service.address() as AddressInfo;
  const options = { host: '127.0.0.1', rank: 1, size: 2, timeoutMs: 120_000 };
  await assert.rejects(StoreClient.connect({ ...options, port, credentials }), { code: 'WL_PROTOCOL' });
  // A port that another program holds is rank 0's to report.
  const environment = { RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(port) };
  await assert.rejects(join({ environment }), {
    code: 'WL_CONFIG',
    message: new RegExp(`Cannot listen on 127\\.0\\.0\\.1:${port}.*EADDRINUSE.*another program uses the port`),
  });
  service.close();
});

async function reasonsOfJoins(ranks: readonly number[], timeoutMs: number): Promise<string[]> {
  const common = { WORLD_SIZE: '4', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${await freePort()}` };
  const joins = ranks.map((rank) => join({ environment: { RANK: `${rank}`, ...common }, timeoutMs }));
  const results = await Promise.allSettled(joins);
  return results.map((result) => (result.status === 'rejected' ? String(result.reason) : 'joined'));
}

/** On a busy machine rank 0 may not listen yet when rank 1 gives up: then rank 1 never came either. */
const isLate = /Rank 1 could not reach rank 0|ranks 1, 2, 3 never joined/;

test('join() names the ranks that never came, on all ranks', async () => {
  let reasons: string[] = [];
  for (const timeoutMs of [500, 2000, 8000, 30_000]) {
    reasons = await reasonsOfJoins([0, 1], timeoutMs);
    if (!reasons.some((reason) => isLate.test(reason))) break;
  }
  for (const reason of reasons) assert.match(reason, /ranks 2, 3 never joined/);
});
