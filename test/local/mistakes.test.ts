// What programs get wrong when they are new: each mistake fails with a code, and the message says what to do instead.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import test from 'node:test';
import { Agent, type BackendName, DescriptorList, Endpoint, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';

/** A JavaScript program passes what it likes. */
function anything(value: unknown): never {
  return value as never;
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

async function answering(text: string): Promise<Server> {
  const server = createServer((socket) => socket.on('error', () => {}).write(text));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

test('invalid names, lists of backends, metadata, messages and registrations are refused', async () => {
  const refused = { code: 'WL_INVALID_ARGUMENT' };
  await assert.rejects(Agent.create(anything(undefined)), { ...refused, message: /name/ });
  await assert.rejects(Agent.create('a', { backends: anything('local') }), {
    ...refused,
    message: /local, verbs, ucx, multi/,
  });
  await using agent = await Agent.create('a', { backends: ['local'] });
  await assert.rejects(agent.loadRemoteMetadata(anything('text')), { ...refused, message: /localMetadata/ });
  await assert.rejects(agent.notify('b', anything(7)), { ...refused, message: /a Uint8Array or a string/ });
  const memory = await agent.allocate(8192);
  assert.throws(() => DescriptorList.blocks(memory, { blockBytes: 0 }), { ...refused, message: /whole numbers/ });
  assert.throws(() => DescriptorList.blocks(memory, { blockBytes: 4096, count: 3 }), { ...refused, message: /8192/ });
});

test('memory that may shrink under whoever moves it is not registered', async () => {
  // What V8 has, and the types of ES2023 have not.
  const Resizable = ArrayBuffer as unknown as new (bytes: number, options: { maxByteLength: number }) => ArrayBuffer;
  const memory = new Uint8Array(new Resizable(64, { maxByteLength: 128 }));
  const refused = { code: 'WL_INVALID_ARGUMENT', message: /not resizable/ };
  await using agent = await Agent.create('a', { backends: ['local'] });
  await assert.rejects(agent.register(memory), refused);
  await using transport = await Transport.create();
  await assert.rejects(transport.register(memory), refused);
});

test('an operation that is neither a write nor a read is refused', async () => {
  await using agent = await Agent.create('a', { backends: ['local'] });
  await using peer = await Agent.create('b', { backends: ['local'] });
  await peer.allocate(64);
  await agent.loadRemoteMetadata(peer.localMetadata());
  const local = DescriptorList.of(await agent.allocate(64));
  const [memory] = agent.remoteMemory('b');
  assert.ok(memory);
  await assert.rejects(
    agent.prepare({ operation: anything('put'), peer: 'b', local, remote: DescriptorList.of(memory) }),
    { code: 'WL_INVALID_ARGUMENT', message: /"write" or "read"/ },
  );
});

test('invalid addresses and timeouts are refused before any call', async () => {
  const refused = { code: 'WL_INVALID_ARGUMENT' };
  for (const port of [-1, 1.5, 65_536, anything('80')]) {
    await assert.rejects(Endpoint.create({ port }), { ...refused, message: /port/ });
  }
  await using endpoint = await Endpoint.create();
  await assert.rejects(endpoint.connect(anything(endpoint.port), anything('127.0.0.1')), {
    ...refused,
    message: /host/,
  });
  await assert.rejects(endpoint.connect('127.0.0.1', 70_000), { ...refused, message: /port/ });
  await assert.rejects(endpoint.connect('127.0.0.1', endpoint.port, { timeoutMs: -1 }), refused);
  await assert.rejects(endpoint.accept({ timeoutMs: -1 }), refused);
});

test('an error about a stranger at the other end names the address that was called', async () => {
  await using endpoint = await Endpoint.create();
  await using agent = await Agent.create('a', { backends: ['local'] });
  const other = await MetadataListener.open(agent, { host: '127.0.0.1', port: 0 });
  const ssh = await answering('SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n');
  const mute = await answering('');
  try {
    const called = (port: number, timeoutMs = 60_000): Promise<unknown> =>
      endpoint.connect('127.0.0.1', port, { timeoutMs });
    for (const port of [portOf(ssh), other.port]) {
      const message = new RegExp(`endpoint at 127.0.0.1 port ${port}: `);
      await assert.rejects(called(port), { code: 'WL_PROTOCOL', message });
    }
    await assert.rejects(called(portOf(mute), 500), {
      code: 'WL_TIMEOUT',
      message: /it is no endpoint, or its process/,
    });
  } finally {
    await other.close();
    ssh.close();
    mute.close();
  }
});

test('an endpoint to which only strangers came says so', async () => {
  await using endpoint = await Endpoint.create({ token: 'right' });
  await using stranger = await Endpoint.create({ token: 'wrong' });
  await assert.rejects(stranger.connect('127.0.0.1', endpoint.port), { code: 'WL_UNAUTHORIZED' });
  await assert.rejects(endpoint.accept({ timeoutMs: 50 }), { code: 'WL_TIMEOUT', message: /refused: .*same token/ });
});

test('an agent takes an address that peers can call, and says which this host has', async () => {
  // A name, all addresses, an address of another host (TEST-NET-1).
  for (const host of ['localhost', 'example.invalid', '0.0.0.0', '::', '192.0.2.1', anything(7)]) {
    const refused = {
      code: 'WL_INVALID_ARGUMENT',
      message: /Invalid host: expected a numeric address.*127\.0\.0\.1, got /,
    };
    await assert.rejects(Agent.create('a', { backends: ['multipath'], host, token: 'some' }), refused);
    await assert.rejects(Endpoint.create({ backends: ['multipath'], host, token: 'some' }), refused);
  }
  await using agent = await Agent.create('a', { backends: ['multipath'], host: '127.1.2.3' });
  assert.equal(agent.host, '127.1.2.3');
});

test('a peer that is gone is told from one that was never reachable', async () => {
  const backends: BackendName[] = ['multipath'];
  await using agent = await Agent.create('a', { backends });
  const gone = await Agent.create('c', { backends });
  await agent.loadRemoteMetadata(gone.localMetadata());
  await gone.close();
  await assert.rejects(agent.notify('c', Buffer.from('x')), { code: 'WL_PEER_LOST', message: /option host/ });
});

test('a notification to an agent that closed fails', async () => {
  await using agent = await Agent.create('a', { backends: ['local'] });
  const peer = await Agent.create('b', { backends: ['local'] });
  await agent.loadRemoteMetadata(peer.localMetadata());
  await agent.notify('b', Buffer.from('x'));
  await peer.close();
  await assert.rejects(agent.notify('b', Buffer.from('y')), { code: 'WL_CLOSED', message: /b closed its agent/ });
});
