// The transport between two processes of this machine: every size intact, one-sided operations, and how failures show.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Settings } from 'weftline';
import { type Connection, type MemoryRegion, Transport } from 'weftline/transport';
import { isWhole } from '../support/extent.ts';

const script = fileURLToPath(new URL('./support/transport-peer.js', import.meta.url));

interface Peer extends AsyncDisposable {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly child: ChildProcess;
  /** Lines that the other process prints after "ready". */
  readonly lines: AsyncIterator<string>;
}

/** A transport here, and another process that connects to it. */
async function withPeer(role: string, settings: Partial<Settings> = {}): Promise<Peer> {
  const transport = await Transport.create({ name: 'this process', settings });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const child = spawn(process.execPath, [script, role, String(listener.port), JSON.stringify(settings)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  const connection = await listener.accept({ timeoutMs: 120_000 });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, 'ready');
  return {
    transport,
    connection,
    child,
    lines,
    [Symbol.asyncDispose]: async () => {
      await transport.close();
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGKILL');
        await once(child, 'exit');
      }
    },
  };
}

function fillPattern(bytes: Uint8Array, seed: number): void {
  let state = seed * 2_654_435_761 + 1;
  for (let index = 0; index < bytes.length; index += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    bytes[index] = state >>> 24;
  }
}

async function sharedRegion(transport: Transport, bytes: number): Promise<MemoryRegion> {
  return transport.register(new Uint8Array(new SharedArrayBuffer(bytes)));
}

const variants: Readonly<Record<string, Partial<Settings>>> = {
  'as it comes': {},
  "on the caller's thread": { transportThread: false },
  'packets of 1472 bytes': { transportSegmentBytes: 1472 },
  'packets of 1472 bytes, each by itself': { transportSegmentBytes: 1472, transportSegmentationOffload: false },
  'small packets on one path, all checked': {
    transportSegmentBytes: 512,
    transportPaths: 1,
    transportChecksum: 'full',
  },
  'two engines': { transportEngines: 2 },
  'four engines, messages split, packets of 1472 bytes': {
    transportEngines: 4,
    transportSpread: 'split',
    transportSegmentBytes: 1472,
  },
  'authenticated packets': { transportAuthentication: true },
  "authenticated packets of 1472 bytes, on the caller's thread": {
    transportAuthentication: true,
    transportSegmentBytes: 1472,
    transportThread: false,
  },
  'authenticated packets of 1472 bytes, each by itself': {
    transportAuthentication: true,
    transportSegmentBytes: 1472,
    transportSegmentationOffload: false,
  },
};

/** Each setting once: "as it comes" is what the tests below have. */
const few = [
  "on the caller's thread",
  'small packets on one path, all checked',
  'four engines, messages split, packets of 1472 bytes',
  'authenticated packets of 1472 bytes, each by itself',
];

for (const [name, settings] of Object.entries(variants).filter(([key]) => isWhole || few.includes(key))) {
  test(`messages of every size come back intact: ${name}`, async () => {
    await using peer = await withPeer('echo', settings);
    const { transport, connection } = peer;
    const { segmentBytes } = connection;
    const most = 5 << 20;
    const out = await sharedRegion(transport, most);
    const back = await sharedRegion(transport, most);
    const payload = segmentBytes - 64;
    const sizes = [0, 2, 63, 64, 65, payload - 1, payload, payload + 1, 3 * payload, 1_000_003, most, 1];
    fillPattern(out.bytes, sizes.length);
    for (const bytes of sizes) {
      const offset = bytes < 1000 ? 7 : 0;
      back.bytes.fill(0);
      const receive = connection.receive({ region: back, offset });
      const send = connection.send({ region: out, offset, bytes });
      assert.equal(await transport.wait(receive), bytes);
      await transport.wait(send);
      const end = offset + bytes;
      assert.ok(Buffer.compare(out.bytes.subarray(offset, end), back.bytes.subarray(offset, end)) === 0, `${bytes}`);
      // Nothing behind the message was touched.
      assert.ok(back.bytes.subarray(end, end + 4096).every((byte) => byte === 0));
    }
  });
}

const severalEngines = { transportEngines: 4 } as const;
const crowds: Readonly<Record<string, Partial<Settings>>> = {
  '': {},
  ', authenticated': { transportAuthentication: true },
  ', four engines': severalEngines,
  ', four engines, split, authenticated': {
    ...severalEngines,
    transportSpread: 'split',
    transportAuthentication: true,
  },
};
for (const [how, settings] of Object.entries(crowds)) {
  test(`many messages under way in several flows, taken by blocking waits${how}`, () => manyMessages(settings));
}

async function manyMessages(settings: Partial<Settings>): Promise<void> {
  await using peer = await withPeer('memory', settings);
  const { transport, connection } = peer;
  const name = await sharedRegion(transport, 4096);
  const bytes = transport.waitBlocking(connection.receive({ region: name }));
  const remote = JSON.parse(Buffer.from(name.bytes.subarray(0, bytes)).toString()) as MemoryRegion['remote'];
  const source = await sharedRegion(transport, 100_000);
  fillPattern(source.bytes, 3);
  const requests: number[] = [];
  for (let at = 0; at < 100_000; at += 1000) {
    const part = { region: source, offset: at, bytes: 1000 };
    requests.push(connection.write({ ...part, ...remote, remoteOffset: 8 + at, flow: 5 }));
  }
  // The counter moves behind all of them.
  requests.push(connection.signal({ ...remote, remoteOffset: 0, add: 41, flow: 5 }));
  for (const request of requests) transport.waitBlocking(request);
  const sum = source.bytes.reduce((total, byte) => total + byte, 0);
  assert.deepEqual(JSON.parse(String((await peer.lines.next()).value)), { counter: 41, sum });

  const copy = await sharedRegion(transport, 100_000);
  transport.waitBlocking(connection.read({ region: copy, ...remote, remoteOffset: 8 }));
  assert.deepEqual(copy.bytes, source.bytes);

  const wrongKey = { ...remote, remoteKey: (remote.remoteKey ^ 1) >>> 0 };
  assert.throws(() => transport.waitBlocking(connection.read({ region: copy, ...wrongKey })));
  const outside = connection.write({ region: copy, ...remote, remoteOffset: (1 << 20) - 10 });
  assert.throws(() => transport.waitBlocking(outside));
  // The connection lives on.
  transport.waitBlocking(connection.send({ region: copy, bytes: 10 }));
}

const drivers: Readonly<Record<string, Partial<Settings>>> = {
  'with an engine thread': {},
  'with four': severalEngines,
  'with four, split': { ...severalEngines, transportSpread: 'split' },
  'without an engine thread': { transportThread: false },
};
for (const [driver, settings] of Object.entries(drivers)) {
  for (const blocking of [true, false]) {
    const how = `${driver}, ${blocking ? 'blocking' : 'async'}`;
    test(`a peer killed in the middle of a message is an error that names it: ${how}`, async () => {
      await using peer = await withPeer('flood', settings);
      const { transport, connection, child } = peer;
      const region = await sharedRegion(transport, 8 << 20);
      await transport.wait(connection.receive({ region }));
      const receive = connection.receive({ region });
      child.kill('SIGKILL');
      const expected = { code: 'WL_PEER_LOST', message: /the other process/ };
      // What was already on its way may still complete the message.
      const outcome = async (request: number): Promise<void> => {
        if (blocking) transport.waitBlocking(request, 60_000);
        else await transport.wait(request, { timeoutMs: 60_000 });
      };
      await assert.rejects(async () => {
        await outcome(receive);
        await outcome(connection.receive({ region }));
      }, expected);
    });
  }
}

test('a wait that is too long fails and leaves the request pending', async () => {
  await using peer = await withPeer('idle');
  const { transport, connection } = peer;
  const region = await sharedRegion(transport, 100);
  const receive = connection.receive({ region });
  await assert.rejects(transport.wait(receive, { timeoutMs: 30 }), {
    code: 'WL_TIMEOUT',
    message: /the other process.*30 ms/,
  });
  assert.throws(() => transport.waitBlocking(receive, 30), { code: 'WL_TIMEOUT' });
  assert.equal(transport.state(receive), 'pending');
  connection.cancel(receive);
  await assert.rejects(transport.wait(receive), { code: 'WL_CLOSED' });
  assert.throws(() => transport.state(receive), { code: 'WL_INVALID_ARGUMENT' });
});

test('requests fail when the connection is closed here, and when it is closed there', async () => {
  await using peer = await withPeer('idle');
  const { transport, connection, lines, child } = peer;
  const region = await sharedRegion(transport, 100);
  const receive = connection.receive({ region });
  await connection.close();
  await assert.rejects(transport.wait(receive), { code: 'WL_CLOSED' });
  assert.throws(() => connection.receive({ region }), { code: 'WL_CLOSED' });
  // The other process was waiting for a message, sees the end of the connection, and ends in good order.
  assert.equal((await lines.next()).done, true);
  if (child.exitCode === null) await once(child, 'exit');
  assert.equal(child.exitCode, 0);
});

test('ranges outside their region are refused, memory can be released', async () => {
  await using peer = await withPeer('idle');
  const { transport, connection } = peer;
  const region = await transport.register(new Uint8Array(100));
  await assert.rejects(transport.wait(connection.send({ region, offset: 90, bytes: 20 })), {
    code: 'WL_INVALID_ARGUMENT',
  });
  await region.close();
  await assert.rejects(transport.wait(connection.send({ region })), { code: 'WL_CLOSED' });
  await assert.rejects(transport.register(new Uint8Array(0)), { code: 'WL_INVALID_ARGUMENT' });
});

/** Local ports of the UDP sockets of this process that are connected to another one of this host. */
function udpPorts(): number[] {
  return readFileSync('/proc/self/net/udp', 'utf8')
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((words) => words[1]?.startsWith('0100007F:') === true && words[2]?.endsWith(':0000') === false)
    .map((words) => parseInt((words[1] as string).slice(9), 16));
}

test('packets of strangers change nothing', async () => {
  await using peer = await withPeer('echo');
  const { transport, connection } = peer;
  const out = await sharedRegion(transport, 300_000);
  const back = await sharedRegion(transport, 300_000);
  fillPattern(out.bytes, 9);
  const stranger = createSocket('udp4');
  const ports = udpPorts();
  assert.ok(ports.length > 0);
  for (let round = 0; round < 30; round += 1) {
    for (const port of ports) stranger.send(randomBytes(round * 40 + 1), port, '127.0.0.1');
    const receive = connection.receive({ region: back });
    const send = connection.send({ region: out });
    assert.equal(await transport.wait(receive), 300_000);
    await transport.wait(send);
    assert.ok(Buffer.compare(out.bytes, back.bytes) === 0);
  }
  stranger.close();
});

test('a transport without a peer gives up at its deadline', async () => {
  await using transport = await Transport.create();
  const address = { host: '127.0.0.1', port: 1 };
  await assert.rejects(transport.connect(address, { timeoutMs: 100 }), { code: 'WL_TIMEOUT', message: /port 1/ });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  await assert.rejects(listener.accept({ timeoutMs: 30 }), { code: 'WL_TIMEOUT' });
  await assert.rejects(listener.accept({ timeoutMs: 30 }), { code: 'WL_TIMEOUT' });
});

test('a wait for a connection ends by the setting timeoutMs, or by its signal', async () => {
  await using transport = await Transport.create({ settings: { timeoutMs: 30 } });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  await assert.rejects(listener.accept(), { code: 'WL_TIMEOUT', message: /within 30 ms/ });
  const reason = new Error('enough');
  await assert.rejects(listener.accept({ signal: AbortSignal.abort(reason) }), reason);
  const controller = new AbortController();
  const accepted = listener.accept({ timeoutMs: 60_000, signal: controller.signal });
  controller.abort(reason);
  await assert.rejects(accepted, reason);
});
