// How agents learn of each other: blobs, the listener, the world's store, etcd; and what strangers get.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import {
  Agent,
  DescriptorList,
  etcdMetadataStore,
  exchangeMetadata,
  fetchMetadata,
  loadPublished,
  MetadataListener,
  type MetadataStore,
  publishMetadata,
  type RemoteMemory,
  sendInvalidation,
  sendMetadata,
  withdrawMetadata,
  worldMetadataStore,
} from 'weftline/agent';
import { join } from 'weftline/world';
import { decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';
import { AgentPeer } from './support/agent-pair.ts';
import { freePort } from '../support/free-port.ts';
import { runEtcd, withoutEtcd } from './support/run-etcd.ts';
import { until } from '../support/until.ts';

const host = '127.0.0.1';

function open(name: string, token = 'secret'): Promise<Agent> {
  return Agent.create(name, { backends: ['multipath'], token, settings: { timeoutMs: 120_000 } });
}

async function failsWith(call: Promise<unknown>, code: WeftlineError['code'], text = /./): Promise<void> {
  await assert.rejects(call, (error: WeftlineError) => {
    assert.equal(error.code, code, error.message);
    assert.match(error.message, text);
    return true;
  });
}

async function writeAll(from: Agent, to: string): Promise<void> {
  const memory = await from.allocate(64);
  const [remote] = from.remoteMemory(to);
  assert.ok(remote);
  const local = DescriptorList.of(memory);
  await using transfer = await from.prepare({ operation: 'write', peer: to, local, remote: DescriptorList.of(remote) });
  transfer.post();
  await transfer.wait();
  await transfer.close();
  await memory.close();
}

test('an agent that is given the address of a listener knows it afterwards, and is known', async () => {
  await using a = await open('a');
  await using b = await open('b');
  const memory = [await a.allocate(64, { name: 'of a' }), await b.allocate(64, { name: 'of b' })];
  const listener = await MetadataListener.open(a);
  assert.equal(await exchangeMetadata(b, { host, port: listener.port }), 'a');
  assert.deepEqual([a.remoteMemory('b')[0]?.name, b.remoteMemory('a')[0]?.name], ['of b', 'of a']);
  await writeAll(b, 'a');
  await writeAll(a, 'b');
  const [verdict, ...others] = a.explain('b');
  assert.deepEqual(others, []);
  assert.deepEqual([verdict?.backend, verdict?.isUsable, verdict?.why], ['multipath', true, undefined]);
  assert.deepEqual(
    verdict?.rails?.map(({ local, remote }) => [local, remote]),
    [[host, host]],
  );
  await sendInvalidation(b, { host, port: listener.port });
  assert.throws(() => a.remoteMemory('b'), /metadata agent a has loaded/);
  await sendMetadata(b, { host, port: listener.port });
  assert.equal(a.remoteMemory('b').length, 1);
  assert.equal(await a.forget('b'), true);
  assert.equal(await a.forget('b'), false);
  assert.equal(memory.length, 2);
  const { port } = listener;
  await listener.close();
  await listener.close();
  await failsWith(fetchMetadata(b, { host, port }), 'WL_PEER_LOST', /Nobody listens/);
});

test('partial metadata add memory, whole ones replace it, earlier lives are refused', async (t) => {
  await using a = await open('a');
  await using b = await open('b');
  const first = await a.allocate(64, { name: 'first' });
  const second = await a.allocate(64, { name: 'second' });
  const names = (): string[] => b.remoteMemory('a').map(({ name }) => name);
  await b.loadRemoteMetadata(a.localMetadata({ regions: [second] }));
  assert.deepEqual(names(), ['second']);
  await b.loadRemoteMetadata(a.localMetadata({ regions: [first], connections: false }));
  assert.deepEqual(names(), ['first', 'second']);
  await writeAll(b, 'a');
  await first.close();
  await b.loadRemoteMetadata(a.localMetadata());
  assert.deepEqual(names(), ['second']);
  assert.throws(() => a.localMetadata({ regions: [first] }), { code: 'WL_INVALID_ARGUMENT' });
  const old = a.localMetadata();
  await a.close();
  // A clock that was set back tells nothing of lives.
  t.mock.method(Date, 'now', () => 0);
  await using later = await open('a');
  await b.loadRemoteMetadata(later.localMetadata());
  assert.deepEqual(names(), []);
  await failsWith(b.loadRemoteMetadata(old), 'WL_STALE', /another one is known/);
  await b.connect('a');
});

test('metadata whose agent has been started anew are found out when they are used', async () => {
  await using b = await open('b');
  const a = await open('a');
  await a.allocate(64);
  const blob = a.localMetadata();
  await a.close();
  await b.loadRemoteMetadata(blob);
  await failsWith(b.connect('a'), 'WL_PEER_LOST');
});

test('a later life of an agent at the same port refuses those who mean its predecessor', async () => {
  await using a = await open('a');
  await using b = await open('b');
  const known = decodeMetadata(a.localMetadata());
  const earlier = { ...known, incarnation: known.incarnation.replace(/^./, (digit) => (digit === '0' ? '1' : '0')) };
  await b.loadRemoteMetadata(encodeMetadata(earlier));
  await failsWith(b.connect('a'), 'WL_STALE', /Agent a has restarted.*load what its localMetadata\(\) gives now/);
});

test('a wrong key, or a region that lies about its size, is refused by the peer, and nothing is written', async () => {
  await using a = await open('a');
  await using b = await open('b');
  const memory = await a.allocate(64);
  const known = decodeMetadata(a.localMetadata());
  const local = DescriptorList.of(await b.allocate(128));
  const [region] = known.regions;
  assert.ok(region);
  const info = region.info.get('multipath') as Uint8Array;
  const guessed = new Map([['multipath', info.map((byte, at) => (at === info.length - 1 ? byte ^ 1 : byte))]] as const);
  const lies = [
    { region: { ...region, number: 100, address: 4096, bytes: 128, info: guessed }, code: 'WL_UNAUTHORIZED' },
    { region: { ...region, number: 101, address: 8192, bytes: 128 }, code: 'WL_INVALID_ARGUMENT' },
  ] as const;
  await b.loadRemoteMetadata(encodeMetadata({ ...known, regions: lies.map((lie) => lie.region) }));
  for (const { region: lie, code } of lies) {
    const remote = new DescriptorList('host', Float64Array.of(lie.address), Float64Array.of(128));
    for (const operation of ['write', 'read'] as const) {
      await using transfer = await b.prepare({ operation, peer: 'a', local, remote });
      transfer.post(Buffer.from('never'));
      await failsWith(transfer.wait(), code);
    }
  }
  assert.ok(memory.bytes.every((byte) => byte === 0));
  assert.deepEqual(a.takeNotifications(), []);
});

test('a caller with another token is refused, and says so on both sides', async () => {
  await using a = await open('a');
  await using stranger = await open('stranger', 'another');
  await using listener = await MetadataListener.open(a);
  await failsWith(exchangeMetadata(stranger, { host, port: listener.port }), 'WL_UNAUTHORIZED', /token/);
  assert.throws(() => a.remoteMemory('stranger'));
});

test('random bytes at the listener are refused with a reason, and the others go on', async () => {
  await using a = await open('a');
  await using b = await open('b');
  await using listener = await MetadataListener.open(a);
  const answers: string[] = [];
  for (let round = 0; round < 20; round++) {
    const socket = connect({ host, port: listener.port });
    socket.on('error', () => {});
    const chunks: Buffer[] = [];
    socket.on('data', (chunk) => chunks.push(chunk));
    const noise = randomBytes(1 + round * 500);
    // A length that no limit allows, so that the reader does not wait for more.
    noise[3] = 0xff;
    socket.end(noise);
    await once(socket, 'close');
    answers.push(Buffer.concat(chunks).toString('latin1'));
  }
  assert.ok(answers.slice(1).every((answer) => answer.includes('WL_PROTOCOL')));
  assert.equal(await exchangeMetadata(b, { host, port: listener.port }), 'a');
  await failsWith(a.loadRemoteMetadata(randomBytes(500)), 'WL_PROTOCOL', /not metadata of an agent/);
});

test('a listener that is no agent, or says nothing, is found out', async () => {
  await using b = await open('b');
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.end('HTTP/1.1 400 Bad Request\r\n\r\n');
  });
  server.listen(0, host);
  await once(server, 'listening');
  const { port } = server.address() as { readonly port: number };
  await failsWith(fetchMetadata(b, { host, port }), 'WL_PROTOCOL');
  server.removeAllListeners('connection');
  server.on('connection', (socket) => socket.on('error', () => {}).resume());
  await failsWith(fetchMetadata(b, { host, port, timeoutMs: 50 }), 'WL_TIMEOUT', /within 50 ms/);
  const signal = AbortSignal.timeout(20);
  await assert.rejects(fetchMetadata(b, { host, port, signal }), (error) => error === signal.reason);
  server.close();
});

async function throughStore(store: MetadataStore): Promise<void> {
  await using a = await open('a');
  await using b = await open('b');
  await a.allocate(64, { name: 'of a' });
  const late = loadPublished(b, store, 'a');
  await publishMetadata(a, store);
  assert.equal(await late, 'a');
  await writeAll(b, 'a');
  await withdrawMetadata(a, store);
  await failsWith(loadPublished(b, store, 'a', { timeoutMs: 2000 }), 'WL_TIMEOUT');
}

test("agents meet in the world's store", async () => {
  const world = await join();
  try {
    await throughStore(worldMetadataStore(world.store));
  } finally {
    await world.close();
  }
});

/** What a process has published goes with it, and stays as long as it lives. */
async function outliveNobody(endpoint: string): Promise<void> {
  // The shortest that etcd grants is two seconds.
  const etcdOptions = { endpoint, leaseMs: 2000, requestMs: 60_000 };
  const store = etcdMetadataStore(etcdOptions);
  await using watcher = await open('watcher');
  await using alive = await open('alive');
  const closed = await open('closed');
  await using mortal = await AgentPeer.start('mortal', { backends: ['multipath'], token: 'secret' });
  for (const agent of [alive, closed]) await publishMetadata(agent, store);
  // Again, as after a registration.
  await publishMetadata(closed, store);
  await mortal.do({ do: 'publish', etcd: etcdOptions });
  for (const name of ['alive', 'closed', 'mortal']) assert.equal(await loadPublished(watcher, store, name), name);
  await closed.close();
  await failsWith(
    store.get('closed', { timeoutMs: 0 }).then(() => {}),
    'WL_TIMEOUT',
    /closed has published nothing/,
  );
  await mortal.kill();
  const isThere = (): Promise<boolean> =>
    store.get('mortal', { timeoutMs: 0 }).then(
      () => true,
      () => false,
    );
  await until(async () => !(await isThere()), 'the end of metadata whose process has ended');
  // Longer than a lease without renewals.
  await new Promise((resolve) => setTimeout(resolve, 1500));
  assert.equal(await loadPublished(watcher, store, 'alive'), 'alive');
  // The next life of an agent is not taken back by the end of the one before.
  const again = await open('alive');
  await publishMetadata(again, etcdMetadataStore(etcdOptions));
  await alive.close();
  assert.equal(await loadPublished(watcher, store, 'alive'), 'alive');
  await again.close();
}

test('metadata of an earlier life in a store are recognised: newer ones are waited for', async () => {
  const blobs = new Map<string, Uint8Array>();
  const store: MetadataStore = {
    put: async (name, blob) => void blobs.set(name, blob),
    get: async (name) => {
      asked += 1;
      return blobs.get(name) as Uint8Array;
    },
    delete: async (name) => void blobs.delete(name),
  };
  let asked = 0;
  await using b = await open('b');
  const first = await open('a');
  await publishMetadata(first, store);
  await first.close();
  await using second = await open('a');
  await b.loadRemoteMetadata(second.localMetadata());
  await failsWith(
    loadPublished(b, store, 'a', { timeoutMs: 120 }).then(() => {}),
    'WL_STALE',
    /another one is known/,
  );
  asked = 0;
  const waiting = loadPublished(b, store, 'a');
  await until(() => asked > 1, 'that the store is asked again');
  await publishMetadata(second, store);
  assert.equal(await waiting, 'a');
  const late = loadPublished(b, store, 'a', { signal: AbortSignal.timeout(60_000) });
  assert.equal(await late, 'a');
});

test('metadata that give no link replace no living agent, whatever the reason', async () => {
  await using a = await open('a');
  await using b = await open('b');
  await b.loadRemoteMetadata(a.localMetadata());
  await b.connect('a');
  const known = decodeMetadata(a.localMetadata());
  const incarnation = known.incarnation.replace(/^./, (digit) => (digit === '0' ? '1' : '0'));
  // Nobody is asked by a backend that this side lacks.
  const forged = encodeMetadata({ ...known, incarnation, connections: new Map([['ucx', new Uint8Array(8)]]) });
  await failsWith(b.loadRemoteMetadata(forged), 'WL_STALE', /gives no link: No backend can carry/);
  await b.connect('a');
  await b.forget('a');
  assert.equal(await b.loadRemoteMetadata(forged), 'a', 'once the known one is forgotten');
});

test('a silent life in a store takes a share of the time, and what is published meanwhile is taken', async () => {
  const asked: number[] = [];
  const loader: Parameters<typeof loadPublished>[0] = {
    settings: { timeoutMs: 60_000 },
    loadRemoteMetadata: async (_blob, { timeoutMs = Number.NaN } = {}) => {
      asked.push(timeoutMs);
      if (asked.length > 2) return 'a';
      throw new WeftlineError(asked.length === 1 ? 'WL_TIMEOUT' : 'WL_STALE', 'silent');
    },
  };
  const store = { put: async () => {}, get: async () => new Uint8Array(), delete: async () => {} };
  assert.equal(await loadPublished(loader, store, 'a'), 'a');
  for (const timeoutMs of asked) assert.ok(timeoutMs >= 1000 && timeoutMs <= 15_000, String(timeoutMs));
});

test('a life that hangs takes no place of one that runs, and loses its own', async () => {
  const options = { backends: ['local'], token: 'secret', settings: { timeoutMs: 120_000 } } as const;
  await using b = await Agent.create('b', options);
  await using old = await AgentPeer.start('a', options);
  const stale = await old.metadata();
  await b.loadRemoteMetadata(stale);
  await b.connect('a');
  await using now = await Agent.create('a', options);
  await now.allocate(64);
  old.child.kill('SIGSTOP');
  const stopped = (): boolean => /^State:\s+T/m.test(readFileSync(`/proc/${old.child.pid}/status`, 'utf8'));
  await until(stopped, 'that the process is stopped');
  // The known one has a link, which memory alone keeps open.
  await failsWith(b.loadRemoteMetadata(now.localMetadata(), { timeoutMs: 500 }), 'WL_STALE', /another one is known/);
  // Whoever speaks lives.
  await using listener = await MetadataListener.open(b);
  await sendMetadata(now, { host, port: listener.port });
  await b.connect('a');
  const local = DescriptorList.of(await b.allocate(64));
  const remote = DescriptorList.of(b.remoteMemory('a')[0] as RemoteMemory);
  await using transfer = await b.prepare({ operation: 'write', peer: 'a', local, remote });
  await failsWith(b.loadRemoteMetadata(stale, { timeoutMs: 500 }), 'WL_STALE', /did not react/);
  transfer.post();
  await transfer.wait();
  // One without a link does not keep its place either.
  await b.forget('a');
  await b.loadRemoteMetadata(stale);
  await b.loadRemoteMetadata(now.localMetadata());
  assert.equal(b.remoteMemory('a').length, 1);
  // One whose process has ended does not, with a link.
  await b.forget('a');
  old.child.kill('SIGCONT');
  await b.loadRemoteMetadata(stale);
  await b.connect('a');
  await old.kill();
  await b.loadRemoteMetadata(now.localMetadata());
  assert.equal(b.remoteMemory('a').length, 1);
});

test('an agent that runs keeps its name, whether there is a link to it or not', async () => {
  const options = { backends: ['local'], settings: { timeoutMs: 120_000 } } as const;
  await using a = await Agent.create('a', options);
  await using other = await Agent.create('a', options);
  await using b = await Agent.create('b', options);
  await b.loadRemoteMetadata(a.localMetadata());
  await failsWith(b.loadRemoteMetadata(other.localMetadata()), 'WL_STALE', /still there.*forget/);
  await b.connect('a');
  await a.close();
  await b.loadRemoteMetadata(other.localMetadata());
});

test('agents meet in etcd', { skip: withoutEtcd }, async () => {
  await using etcd = await runEtcd();
  await throughStore(etcdMetadataStore({ endpoint: etcd.endpoint, requestMs: 60_000 }));
  await outliveNobody(etcd.endpoint);
});

test('etcd that is not there, or is something else, is told', async () => {
  await using a = await open('a');
  const nowhere = etcdMetadataStore({ endpoint: `http://${host}:${await freePort()}` });
  await failsWith(publishMetadata(a, nowhere), 'WL_PEER_LOST', /Cannot reach etcd/);
});
