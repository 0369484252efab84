// The transport under callers that fail, many connections, peers that stand still or leave, and an engine that breaks.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { connect } from 'node:net';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { readSettings, type Settings } from 'weftline';
import { engineCommandKinds } from '#lib/transport/engine-commands.js';
import { openEngines } from '#lib/transport/host/transport.js';
import { RequestSlots } from '#lib/transport/host/request-slots.js';
import { type Connection, Transport, type TransportListener } from 'weftline/transport';
import { until } from '../support/until.ts';
import { sampled } from '../support/extent.ts';

const script = fileURLToPath(new URL('./support/transport-peer.js', import.meta.url));

function openDescriptors(): number {
  return readdirSync('/proc/self/fd').length;
}

/** Sockets close a moment after they are told to. */
async function descriptorsFall(most: number): Promise<void> {
  await until(() => openDescriptors() <= most, `${most} open descriptors, as before,`);
}

/** A caller that says something the listener cannot like, and hears until it is hung up on. */
async function badGuest(port: number, words: Uint8Array): Promise<void> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  socket.end(words);
  socket.resume();
  await once(socket, 'close');
}

async function connectedPeer(role: string, transport: Transport, settings: Partial<Settings> = {}) {
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const child = spawn(process.execPath, [script, role, String(listener.port), JSON.stringify(settings)], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  return { child, connection: await listener.accept({ timeoutMs: 120_000 }) };
}

async function connectAll(transport: Transport, listener: TransportListener, count: number): Promise<Connection[][]> {
  const address = { host: '127.0.0.1', port: listener.port };
  return Promise.all([
    Promise.all(Array.from({ length: count }, () => transport.connect(address))),
    Promise.all(Array.from({ length: count }, () => listener.accept({ timeoutMs: 60_000 }))),
  ]);
}

test('a thousand greetings that fail leave nothing behind, and the next good one is served', async () => {
  await using transport = await Transport.create({ token: 'right' });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const before = openDescriptors();
  for (let round = 0; round < 20; round += 1) {
    await Promise.all(
      Array.from({ length: 48 }, (_, index) => badGuest(listener.port, randomBytes(index % 3 === 0 ? 0 : 4 * index))),
    );
    await using stranger = await Transport.create({ token: 'wrong', settings: { transportThread: false } });
    const attempts = [1, 2].map(() => stranger.connect({ host: '127.0.0.1', port: listener.port }));
    for (const attempt of attempts) await assert.rejects(attempt, { code: 'WL_UNAUTHORIZED' });
  }
  await descriptorsFall(before);
  const [[one], [two]] = (await connectAll(transport, listener, 1)) as [[Connection], [Connection]];
  const region = await transport.register(new Uint8Array(10));
  const receive = one.receive({ region });
  await transport.wait(two.send({ region }));
  assert.equal(await transport.wait(receive), 10);
});

test('two hundred connections of one transport, made at once, carry messages and close', async () => {
  const before = openDescriptors();
  {
    await using transport = await Transport.create({ settings: { transportPaths: 2 } });
    using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
    const [guests, hosts] = (await connectAll(transport, listener, 200)) as [Connection[], Connection[]];
    const region = await transport.register(new Uint8Array(new SharedArrayBuffer(800_000)));
    const receives = hosts.map((host, index) => host.receive({ region, offset: 4000 * index, bytes: 4000 }));
    const sends = guests.map((guest) => guest.send({ region, bytes: 4000 }));
    for (const send of sends) await transport.wait(send);
    for (const receive of receives) assert.equal(await transport.wait(receive), 4000);
    const pending = hosts.map((host) => host.receive({ region }));
    await Promise.all(hosts.slice(0, 100).map((host) => host.close()));
    for (const request of pending.slice(0, 100)) await assert.rejects(transport.wait(request), { code: 'WL_CLOSED' });
  }
  await descriptorsFall(before);
});

const twoRails = { transportRails: '127.0.0.1,127.0.0.2', transportPaths: 2 };
const drivers: Readonly<Record<string, Partial<Settings>>> = {
  'no engine thread': { transportThread: false },
  'two engines, two rails, split': { ...twoRails, transportEngines: 2, transportSpread: 'split' },
  'four engines, two rails, in turn': { ...twoRails, transportEngines: 4 },
  'an engine thread': { transportEngines: 1 },
};

for (const [how, driver] of sampled(Object.entries(drivers), 2)) {
  test(`a peer that stands still for too long is lost, and learns of it when it goes on: ${how}`, async (t) => {
    const settings = { transportGiveUpMs: 3000, transportKeepAliveMs: 200, ...driver };
    await using transport = await Transport.create({ settings });
    const { child, connection } = await connectedPeer('idle', transport, settings);
    t.after(() => child.kill('SIGKILL'));
    const region = await transport.register(new Uint8Array(new SharedArrayBuffer(4 << 20)));
    child.kill('SIGSTOP');
    await assert.rejects(transport.wait(connection.send({ region })), {
      code: 'WL_PEER_LOST',
      message: /the other process/,
    });
    await assert.rejects(async () => transport.wait(connection.send({ region })), { code: 'WL_PEER_LOST' });
    child.kill('SIGCONT');
    // Its wait ends, and with it the process.
    if (child.exitCode === null) await once(child, 'exit');
    assert.equal(child.exitCode, 0);
  });

  test(`a peer killed in mid-flight fails what is under way on every lane, and others go on: ${how}`, async (t) => {
    await using transport = await Transport.create({ settings: driver });
    const { child, connection } = await connectedPeer('flood', transport, driver);
    const other = await connectedPeer('echo', transport, driver);
    for (const peer of [child, other.child]) t.after(() => peer.kill('SIGKILL'));
    const bytes = 8 << 20;
    const region = await transport.register(new Uint8Array(new SharedArrayBuffer(bytes)));
    await transport.wait(connection.receive({ region }));
    const requests = [1, 2, 3, 4].flatMap((flow) => [
      connection.send({ region, flow }),
      connection.receive({ region, flow }),
      connection.flush(flow),
    ]);
    requests.push(connection.receive({ region }), connection.receive({ region }));
    const echoed = other.connection.receive({ region });
    const sent = other.connection.send({ region });
    child.kill('SIGKILL');
    const ends = await Promise.allSettled(requests.map((request) => transport.wait(request, { timeoutMs: 60_000 })));
    // A flush behind nothing is done at once, and what had come when the peer was killed may end a message.
    for (const end of ends.filter(({ status }) => status === 'rejected'))
      assert.equal((end as PromiseRejectedResult).reason.code, 'WL_PEER_LOST');
    const messages = ends.filter((_, index) => index < 12 && index % 3 !== 2);
    assert.ok(messages.every(({ status }) => status === 'rejected'));
    await transport.wait(sent);
    assert.equal(await transport.wait(echoed), bytes);
    const last = other.connection.receive({ region });
    await transport.wait(other.connection.send({ region, bytes: 1 }));
    assert.equal(await transport.wait(last), 1);
    if (other.child.exitCode === null) await once(other.child, 'exit');
    assert.equal(other.child.exitCode, 0);
  });
}

test('a process ends by itself though its transport is open and a request is pending', async () => {
  await using transport = await Transport.create();
  const { child, connection } = await connectedPeer('leave', transport);
  const region = await transport.register(new Uint8Array(100));
  if (child.exitCode === null) await once(child, 'exit');
  assert.equal(child.exitCode, 0);
  await assert.rejects(async () => transport.wait(connection.receive({ region })), {
    code: 'WL_PEER_LOST',
    message: /the other process/,
  });
});

test('an engine that fails ends the waits of a thread that blocks, and those of one that does not', async () => {
  const engines = await openEngines({ ...readSettings(), transportThread: true });
  const failures: Error[] = [];
  engines.listen(
    () => {},
    (error) => failures.push(error),
  );
  const slots = new RequestSlots(engines, 20_000);
  // A cancellation of nothing, which never ends.
  slots.command.kind = engineCommandKinds.cancel;
  const requests = [slots.post('nobody', 0), slots.post('nobody', 0)] as const;
  const expected = { code: 'WL_INTERNAL', message: /no such call/ };
  const call = engines.call(0, 'no such call' as never);
  assert.throws(() => slots.waitBlocking(requests[0]), expected);
  await assert.rejects(slots.wait(requests[1]), expected);
  await assert.rejects(call, expected);
  assert.throws(() => slots.post('nobody', 0), expected);
  assert.equal(failures.length, 1);
  await engines.close();
});
