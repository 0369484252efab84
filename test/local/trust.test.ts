// Who is let in by each listener: holders of the token; without one, processes of the same user; nobody else, however many.
import assert from 'node:assert/strict';
import { execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import { createInterface } from 'node:readline';
import test from 'node:test';
import { promisify } from 'node:util';
import { Agent, Endpoint, MetadataListener } from 'weftline/agent';
import { Transport } from 'weftline/transport';
import { strangers } from '#lib/meeting/listener.js';
import { host, openListeners, type OpenListener, outcomeOf, type Target, visit } from './support/listeners.js';

// The tests decide.
delete process.env['WEFTLINE_TOKEN'];

const NOBODY = 65_534;
const visitorModule = new URL('./support/visitor.js', import.meta.url).pathname;

/** Why no process of another user can visit. */
function whyNoOtherUser(): string | false {
  if (process.geteuid?.() !== 0) return 'only root can start processes of other users';
  const { status, stderr } = spawnSync(process.execPath, [visitorModule, '[]'], { uid: NOBODY, gid: NOBODY, cwd: '/' });
  return status === 0 ? false : `another user cannot run this build: ${String(stderr).slice(0, 200)}`;
}

async function withListeners(token: string, use: (listeners: readonly OpenListener[]) => Promise<void>): Promise<void> {
  const listeners = await openListeners(token);
  try {
    await use(listeners);
  } finally {
    for (const { close } of listeners) await close();
  }
}

function targetsOf(listeners: readonly OpenListener[]): Target[] {
  return listeners.map(({ name, port, facts }) => ({ name, port, facts }));
}

test('with a token, only its holders are let in', async () => {
  await withListeners('right', async (listeners) => {
    for (const target of listeners) {
      for (const token of ['wrong', '', 'right ']) {
        assert.equal(await outcomeOf(target, token), 'WL_UNAUTHORIZED', `${target.name} with "${token}"`);
      }
      await visit(target, 'right');
    }
  });
});

test('without a token, processes of this user are let in, and nobody with one', async () => {
  await withListeners('', async (listeners) => {
    for (const target of listeners) {
      assert.equal(await outcomeOf(target, 'some'), 'WL_UNAUTHORIZED', target.name);
      await visit(target, '');
    }
    const env = { PATH: '/usr/bin:/bin' };
    const targets = JSON.stringify(targetsOf(listeners));
    const { stdout } = await promisify(execFile)(process.execPath, [visitorModule, targets, ''], { env, cwd: '/' });
    for (const [name, outcomes] of Object.entries(JSON.parse(stdout) as object)) {
      assert.deepEqual(outcomes, ['met'], name);
    }
  });
});

test('a process of another user is not let in', { skip: whyNoOtherUser() }, async () => {
  for (const token of ['', 'secret']) {
    await withListeners(token, async (listeners) => {
      const targets = JSON.stringify(targetsOf(listeners));
      const options = { uid: NOBODY, gid: NOBODY, cwd: '/' };
      const run = await promisify(execFile)(process.execPath, [visitorModule, targets, '', 'a guess'], options);
      const outcomes = JSON.parse(run.stdout) as Readonly<Record<string, string[]>>;
      assert.equal(Object.keys(outcomes).length, listeners.length);
      for (const [name, codes] of Object.entries(outcomes)) {
        assert.deepEqual(codes, ['WL_UNAUTHORIZED', 'WL_UNAUTHORIZED'], name);
      }
      for (const target of listeners) await visit(target, token);
    });
  }
});

/** Passes bytes on to the port, and keeps what callers sent. */
async function recordingRelay(to: number): Promise<{ readonly port: number; readonly sent: Buffer[]; close(): void }> {
  const sent: Buffer[] = [];
  const sockets: Socket[] = [];
  const server = createServer((caller) => {
    const onward = connect({ host, port: to });
    sockets.push(caller, onward);
    caller.on('data', (chunk) => sent.push(chunk)).on('error', () => {});
    onward.on('error', () => {});
    caller.pipe(onward).pipe(caller);
  });
  server.listen(0, host);
  await once(server, 'listening');
  const close = (): void => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { port: (server.address() as AddressInfo).port, sent, close };
}

async function answerTo(port: number, bytes: Uint8Array): Promise<string> {
  const socket = connect({ host, port });
  const heard: Buffer[] = [];
  socket.on('data', (chunk) => heard.push(chunk)).on('error', () => {});
  socket.write(bytes);
  await once(socket, 'close');
  return Buffer.concat(heard).toString('latin1');
}

test('what a caller sent in an earlier meeting lets nobody in again', async () => {
  await withListeners('secret', async (listeners) => {
    for (const target of listeners) {
      const relay = await recordingRelay(target.port);
      await visit({ ...target, port: relay.port }, 'secret');
      relay.close();
      const answer = await answerTo(target.port, Buffer.concat(relay.sent));
      assert.match(answer, /refused.*WL_UNAUTHORIZED/, target.name);
      assert.ok(!Buffer.concat(relay.sent).includes('secret'), target.name);
      await visit(target, 'secret');
    }
  });
});

test('garbage is refused with a reason', async () => {
  await withListeners('secret', async (listeners) => {
    for (const target of listeners) {
      for (const bytes of [Buffer.alloc(100, 0xff), Buffer.from('GET / HTTP/1.1\r\n\r\n')]) {
        assert.match(await answerTo(target.port, bytes), /refused.*WL_PROTOCOL/, target.name);
      }
      await visit(target, 'secret');
    }
  });
});

/** Sockets that this process holds whose local port is the listener's. */
function heldBy(port: number): number {
  const wanted = port.toString(16).toUpperCase().padStart(4, '0');
  const inodes = new Set(
    readFileSync('/proc/self/net/tcp', 'latin1')
      .split('\n')
      .filter((line) => line.includes(`:${wanted} `) && !line.includes(' 0A '))
      .filter((line) => line.trim().split(/\s+/)[1]?.endsWith(`:${wanted}`) === true)
      .map((line) => line.trim().split(/\s+/)[9]),
  );
  return readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return inodes.has(/^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/self/fd/${fd}`))?.[1]);
    } catch {
      return false;
    }
  }).length;
}

const MOST = 1024;
const FLOOD = Number(process.env['WEFTLINE_TEST_FLOOD'] ?? 1200);

test(`of ${FLOOD} callers that say nothing, each listener holds a bounded number, and serves others`, async () => {
  await withListeners('secret', async (listeners) => {
    for (const target of listeners) {
      const crowd: Socket[] = [];
      for (let count = 0; count < FLOOD; count += 50) {
        const more = Array.from({ length: 50 }, () => connect({ host, port: target.port }).on('error', () => {}));
        crowd.push(...more);
        await Promise.all(more.map((socket) => new Promise((resolve) => socket.once('connect', resolve))));
      }
      await visit(target, 'secret');
      assert.ok(strangers.count <= MOST, `${target.name} counts ${strangers.count}`);
      assert.ok(heldBy(target.port) <= MOST + 8, `${target.name} holds ${heldBy(target.port)}`);
      for (const socket of crowd) socket.destroy();
      await visit(target, 'secret');
    }
  });
});

test('a process that may open few files keeps most of them, whatever strangers do', async () => {
  const program = new URL('./support/listening-process.js', import.meta.url).pathname;
  const limited = spawn('/bin/sh', ['-c', 'ulimit -n 400 && exec "$0" "$1"', process.execPath, program], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: limited.stdout })[Symbol.asyncIterator]();
  const next = async (): Promise<number> => Number((await lines.next()).value);
  const count = (): Promise<number> => {
    limited.stdin.write('\n');
    return next();
  };
  try {
    const port = await next();
    const before = await count();
    const crowd: Socket[] = [];
    for (let round = 0; round < 8; round += 1) {
      const more = Array.from({ length: 50 }, () => connect({ host, port }).on('error', () => {}));
      crowd.push(...more);
      await Promise.all(more.map((socket) => new Promise((resolve) => socket.once('connect', resolve))));
    }
    await visit({ name: 'transport', port, facts: {} }, 'secret');
    // A quarter of 400, and what the visit has opened.
    const held = (await count()) - before;
    assert.ok(held <= 100 + 60, `${held} more`);
    for (const socket of crowd) socket.destroy();
    await visit({ name: 'transport', port, facts: {} }, 'secret');
  } finally {
    limited.kill('SIGKILL');
  }
});

test('callers that say nothing are dropped after a time, those that were let in stay', async () => {
  const settings = { greetingMs: 2000, timeoutMs: 120_000, transportThread: false };
  await using transport = await Transport.create({ settings });
  using listener = await transport.listen({ host, port: 0 });
  await using caller = await Transport.create({ settings });
  const silent = connect({ host, port: listener.port }).resume();
  const connection = await caller.connect({ host, port: listener.port });
  await once(silent, 'close');
  assert.equal(connection.error, undefined);
});

test('a caller that is dropped before it was known tries again until its deadline', async () => {
  // Without a token, the door would be a relay that is kept out.
  const token = 'a token';
  await using transport = await Transport.create({ token });
  using listener = await transport.listen({ host, port: 0 });
  let calls = 0;
  const door = createServer((caller) => {
    calls += 1;
    if (calls <= 3) {
      caller.destroy();
      return;
    }
    const onward = connect({ host, port: listener.port });
    onward.on('error', () => {});
    caller.on('error', () => {});
    caller.pipe(onward).pipe(caller);
  }).listen(0, host);
  await once(door, 'listening');
  await using caller = await Transport.create({ token });
  const { port } = door.address() as AddressInfo;
  const connection = await caller.connect({ host, port }, { timeoutMs: 120_000 });
  assert.equal(calls, 4);
  await connection.close();
  calls = Number.NEGATIVE_INFINITY;
  await assert.rejects(caller.connect({ host, port }, { timeoutMs: 200 }), {
    code: 'WL_TIMEOUT',
    message: /within 200 ms/,
  });
  door.close();
});

/** One that other hosts reach, if this host has any; where it does not, all. */
const outside =
  Object.values(networkInterfaces())
    .flat()
    .find((entry) => entry?.internal === false && entry.family === 'IPv4')?.address ?? '0.0.0.0';

test('without a token, nothing listens at or calls an address of other hosts', async () => {
  const needsToken = {
    code: 'WL_CONFIG',
    message: /token is needed.*openssl rand -hex 32.*WEFTLINE_TOKEN.*option token/,
  };
  await using transport = await Transport.create();
  for (const elsewhere of [outside, '0.0.0.0', '::', '192.0.2.1']) {
    await assert.rejects(transport.listen({ host: elsewhere, port: 0 }), needsToken);
    await assert.rejects(Agent.create('a', { host: elsewhere }), needsToken);
    await assert.rejects(Agent.create('a', { host: elsewhere, backends: ['local'] }), needsToken);
    await assert.rejects(Endpoint.create({ host: elsewhere }), needsToken);
  }
  await assert.rejects(transport.connect({ host: '192.0.2.1', port: 9 }), needsToken);
  await assert.rejects(transport.connect({ host: 'example.invalid', port: 9 }), needsToken);
  await using agent = await Agent.create('a', { backends: ['multipath'] });
  await assert.rejects(MetadataListener.open(agent, { host: outside }), needsToken);
  await using endpoint = await Endpoint.create({ backends: ['multipath'] });
  await assert.rejects(endpoint.connect('192.0.2.1', 9), needsToken);
  for (const own of ['127.0.0.1', '127.1.2.3', 'localhost']) {
    using listener = await transport.listen({ host: own, port: 0 });
    assert.ok(listener.port > 0);
  }
});

test('with a token, other addresses are open to its holders', async () => {
  await using transport = await Transport.create({ token: 'secret' });
  using listener = await transport.listen({ host: outside, port: 0 });
  const address = { host: outside === '0.0.0.0' ? host : outside, port: listener.port };
  await using stranger = await Transport.create();
  await assert.rejects(stranger.connect(address, { timeoutMs: 120_000 }), (error: { code: string }) =>
    ['WL_CONFIG', 'WL_UNAUTHORIZED'].includes(error.code),
  );
  await using friend = await Transport.create({ token: 'secret' });
  const connection = await friend.connect(address);
  await connection.close();
});
