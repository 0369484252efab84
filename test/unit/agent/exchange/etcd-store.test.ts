// Metadata in a store: what is published while a lease is renewed, and while the agent closes.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { inspect } from 'node:util';
import { Agent, etcdMetadataStore, publishMetadata } from 'weftline/agent';
import { withCode } from '../../../support/with-code.ts';

const KEEP_ALIVE = '/v3/lease/keepalive';
const SLOW_MS = 50;

interface Stored {
  readonly value: string;
  readonly lease: string;
}

/** A server that answers as etcd does, as far as the store uses it, for one key; each answer takes a while. The first lease expires at once. */
class SmallEtcd {
  readonly server: Server = createServer((request, response) => {
    const { url = '' } = request;
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(chunks).toString('utf8')) as Record<string, string>;
      const answer = this.#answer(url, body);
      setTimeout(() => response.end(JSON.stringify(answer)), this.slowMs);
    });
    this.server.emit('asked', url);
  });
  stored: Stored | undefined;
  renewed = '';
  slowMs: number = SLOW_MS;
  #leases = 0;

  #answer(url: string, { key, value = '', lease = '', ID = '' }: Record<string, string>): unknown {
    if (url === '/v3/lease/grant') return { ID: String(++this.#leases) };
    if (url === '/v3/lease/revoke' && this.stored?.lease === ID) this.stored = undefined;
    if (url === '/v3/kv/put' && key !== undefined) this.stored = { value, lease };
    if (url !== KEEP_ALIVE) return {};
    this.renewed = ID;
    return { result: ID === '1' ? {} : { TTL: '1' } };
  }
}

test('what is published while an expired lease is renewed stays, under the lease that is renewed from then on', async () => {
  const etcd = new SmallEtcd();
  const { server } = etcd;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const store = etcdMetadataStore({ endpoint: `http://127.0.0.1:${port}`, leaseMs: 600 });
  const untilRenewal = async (): Promise<void> => {
    for (;;) {
      const [url] = (await once(server, 'asked')) as [string];
      if (url === KEEP_ALIVE) return;
    }
  };
  try {
    await store.put('a', Buffer.from('old'));
    await untilRenewal();
    // The renewal is to find that the lease has expired, and to store what it knows anew.
    const release = await store.put('a', Buffer.from('new'));
    await untilRenewal();
    await untilRenewal();
    assert.equal(Buffer.from(etcd.stored?.value ?? '', 'base64').toString(), 'new');
    assert.equal(etcd.renewed, etcd.stored?.lease);
    await release?.();
    assert.equal(etcd.stored, undefined);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test('what is published while the agent closes is taken back', async () => {
  const agent = await Agent.create('late', { backends: ['multipath'] });
  let wasTakenBack = false;
  const store = {
    put: async () => {
      await agent.close();
      return async () => void (wasTakenBack = true);
    },
    get: () => Promise.reject(new Error('not asked')),
    delete: () => Promise.resolve(),
  };
  await assert.rejects(publishMetadata(agent, store), { code: 'WL_CLOSED' });
  assert.ok(wasTakenBack);
});

test('the requests that publishing takes share its time', async () => {
  const etcd = new SmallEtcd();
  etcd.slowMs = 400;
  const { server } = etcd;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  try {
    // A lease and a value: each in time, both together not.
    const store = etcdMetadataStore({ endpoint: `http://127.0.0.1:${port}`, requestMs: 600 });
    await assert.rejects(store.put('a', Buffer.from('blob')), { code: 'WL_PEER_LOST', message: /within 600 ms/ });
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test('a get without time to wait still asks once, and says what is missing', async () => {
  const { server } = new SmallEtcd();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  try {
    const store = etcdMetadataStore({ endpoint: `http://127.0.0.1:${port}` });
    await assert.rejects(store.get('nobody', { timeoutMs: 0 }), {
      code: 'WL_TIMEOUT',
      message: /nobody has published nothing/,
    });
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test('options that cannot work are refused at once, and no password is shown', () => {
  const endpoint = 'http://127.0.0.1:2379';
  const secret = 'pass-word';
  const bad = [
    '',
    5,
    null,
    undefined,
    'garbage',
    'ftp://127.0.0.1:2379',
    `${endpoint}/etcd`,
    `${endpoint}/?user=x`,
    `http://user:${secret}@127.0.0.1:1/`,
    `http://:${secret}@h`,
    `http://user:${secret}@:x`,
    `http://a:${secret}@@h`,
  ].map((value): object => ({ endpoint: value }));
  bad.push({ endpoint, prefix: 5 }, { endpoint, requestMs: 'x' }, { endpoint, requestMs: 0 });
  bad.push({ endpoint, leaseMs: Number.NaN }, { endpoint, leaseMs: 2 ** 31 });
  for (const options of bad) {
    assert.throws(
      () => Reflect.apply(etcdMetadataStore, undefined, [options]),
      (error) => {
        assert.ok(!inspect(error, { depth: 9 }).includes(secret));
        return withCode('WL_INVALID_ARGUMENT', 'Invalid ')(error);
      },
    );
  }
  assert.ok(etcdMetadataStore({ endpoint: `${endpoint}/` }));
});
