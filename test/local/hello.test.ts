// The hello of every protocol: what it accepts, and what it makes of strangers, liars and relays that change bytes.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { ControlChannel } from '#lib/meeting/control-channel.js';
import { type Credentials, credentialsOf } from '#lib/meeting/credentials.js';
import { decodeRefusal, encodeFrame, type Frame, FrameReader, strangerLimits } from '#lib/meeting/frames.js';
import { type Greeted, type HelloOptions, receiveHello, sayHello } from '#lib/meeting/hello.js';

const deadline = (milliseconds = 120_000): number => performance.now() + milliseconds;
const hello = (credentials: Credentials, version = 1): HelloOptions => ({ protocol: 'test', version, credentials });
const token = credentialsOf('a token');

/** Two ends of a TCP connection. */
async function pair(): Promise<[Socket, Socket]> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [serverSide] = (await once(server, 'connection')) as [Socket];
  server.close();
  return [serverSide, client];
}

/** Changes a frame on its way; undefined drops it. */
type Change = (frame: Frame, direction: 'toServer' | 'toClient', index: number) => Frame | undefined;

/** Passes frames on from one socket to the other. */
function pass(from: Socket, to: Socket, direction: 'toServer' | 'toClient', change: Change): void {
  const reader = new FrameReader(strangerLimits);
  let index = 0;
  from.on('data', (chunk) => {
    reader.push(chunk);
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) {
      const changed = change(frame, direction, index++);
      if (changed === undefined) continue;
      const { parts: _lengths, ...header } = changed.header;
      for (const piece of encodeFrame(header, changed.parts)) to.write(piece);
    }
  });
  from.on('error', () => {}).on('close', () => to.destroySoon());
}

/** Both sides of a hello, through a relay. */
async function meet(
  server: HelloOptions,
  client: HelloOptions,
  change: Change = (frame) => frame,
): Promise<[PromiseSettledResult<Greeted>, PromiseSettledResult<Greeted>]> {
  const [serverSide, relayToServer] = await pair();
  const [relayToClient, clientSide] = await pair();
  pass(relayToServer, relayToClient, 'toClient', change);
  pass(relayToClient, relayToServer, 'toServer', change);
  const results = await Promise.allSettled([
    receiveHello(new ControlChannel(serverSide, deadline()), server, () => ({ role: 'server', port: 7 })),
    sayHello(new ControlChannel(clientSide, deadline()), client, { role: 'client', name: 'x' }),
  ]);
  for (const socket of [serverSide, relayToServer, relayToClient, clientSide]) socket.destroy();
  return results;
}

/** The same without a relay. */
async function meetDirectly(
  server: HelloOptions,
  client: HelloOptions,
): Promise<[PromiseSettledResult<Greeted>, PromiseSettledResult<Greeted>]> {
  const [serverSide, clientSide] = await pair();
  const results = await Promise.allSettled([
    receiveHello(new ControlChannel(serverSide, deadline()), server, () => ({})),
    sayHello(new ControlChannel(clientSide, deadline()), client, {}),
  ]);
  for (const socket of [serverSide, clientSide]) socket.destroy();
  return results;
}

function codeOf(result: PromiseSettledResult<unknown>): string {
  return result.status === 'rejected' ? (result.reason as WeftlineError).code : 'met';
}

function messageOf(result: PromiseSettledResult<unknown>): string {
  return result.status === 'rejected' ? (result.reason as WeftlineError).message : 'met';
}

test('both learn what the other says, and the same secrets, which differ between meetings', async () => {
  const keys = new Set<string>();
  for (let round = 0; round < 2; round += 1) {
    const [server, client] = await meet(hello(token), hello(credentialsOf('a token')));
    assert.ok(server.status === 'fulfilled' && client.status === 'fulfilled', messageOf(server));
    assert.deepEqual(server.value.body, { role: 'client', name: 'x' });
    assert.deepEqual(client.value.body, { role: 'server', port: 7 });
    const key = Buffer.from(server.value.secrets.key('a')).toString('hex');
    assert.equal(Buffer.from(client.value.secrets.key('a')).toString('hex'), key);
    keys.add(key).add(Buffer.from(server.value.secrets.key('b')).toString('hex'));
  }
  assert.equal(keys.size, 4);
});

test('processes of one user meet without a token, within one scope', async () => {
  const [server, client] = await meetDirectly(hello(credentialsOf('')), hello(credentialsOf('')));
  assert.deepEqual([server.status, client.status], ['fulfilled', 'fulfilled'], messageOf(server));
  const [one, two] = await meetDirectly(hello(credentialsOf('', 'a job')), hello(credentialsOf('', 'another job')));
  assert.deepEqual([codeOf(one), codeOf(two)], ['WL_UNAUTHORIZED', 'WL_UNAUTHORIZED']);
  assert.match(messageOf(two), /another user, for another job/);
});

test('without a token, nobody can put a relay between two processes, even one that changes nothing', async () => {
  const [server, client] = await meet(hello(credentialsOf('')), hello(credentialsOf('')));
  assert.deepEqual([codeOf(server), codeOf(client)], ['WL_UNAUTHORIZED', 'WL_UNAUTHORIZED']);
  assert.match(messageOf(client), /passes on/);
});

test('the error of a failed proof says which kinds of credential met, on both sides', async () => {
  const cases: readonly (readonly [Credentials, Credentials, RegExp, RegExp])[] = [
    [token, credentialsOf('a guess'), /same token \(WEFTLINE_TOKEN/, /same token \(WEFTLINE_TOKEN/],
    [
      token,
      credentialsOf(''),
      /this side .* a token, and the peer has none/,
      /the peer .* a token, and this side has none/,
    ],
    [
      credentialsOf(''),
      token,
      /the peer .* a token, and this side has none/,
      /this side .* a token, and the peer has none/,
    ],
  ];
  for (const [ours, theirs, onServer, onClient] of cases) {
    const [server, client] = await meet(hello(ours), hello(theirs));
    assert.deepEqual([codeOf(server), codeOf(client)], ['WL_UNAUTHORIZED', 'WL_UNAUTHORIZED']);
    assert.match(messageOf(server), onServer);
    assert.match(messageOf(client), onClient);
  }
});

test('another version and another protocol are told apart', async () => {
  const [server, client] = await meet(hello(token), hello(token, 2));
  assert.deepEqual([codeOf(server), codeOf(client)], ['WL_PROTOCOL', 'WL_PROTOCOL']);
  assert.match(messageOf(client), /version 1 of test, this side speaks 2/);
  const [, other] = await meet({ ...hello(token), protocol: 'other' }, hello(token));
  assert.match(messageOf(other), /another protocol \(other\), expected test/);
});

function flip(text: string): string {
  return text.startsWith('0') ? `1${text.slice(1)}` : `0${text.slice(1)}`;
}

function set(name: string, to: (value: unknown) => unknown): (frame: Frame) => Frame {
  return ({ header, parts }) => ({ header: { ...header, [name]: to(header[name]) }, parts });
}

function body(text: string): (frame: Frame) => Frame {
  return ({ header }) => ({ header, parts: [Buffer.from(text)] });
}

test('whatever a relay changes in either hello is noticed before the body is used', async () => {
  const changes: readonly (readonly ['toServer' | 'toClient', number, (frame: Frame) => Frame])[] = [
    ['toClient', 0, set('nonce', (nonce) => flip(nonce as string))],
    ['toClient', 0, set('credential', () => 'user')],
    ['toServer', 0, set('nonce', (nonce) => flip(nonce as string))],
    ['toServer', 0, set('proof', (proof) => flip(proof as string))],
    ['toServer', 0, set('proof', () => 7)],
    ['toServer', 0, set('credential', () => 'user')],
    ['toServer', 0, body('{"role":"client","name":"y"}')],
    ['toServer', 0, body('{"role":"client","name":"x" }')],
    ['toServer', 0, ({ header }) => ({ header, parts: [] })],
    ['toClient', 1, set('proof', (proof) => flip(proof as string))],
    ['toClient', 1, body('{"role":"server","port":8}')],
    ['toClient', 1, ({ header }) => ({ header, parts: [] })],
  ];
  for (const [direction, at, alter] of changes) {
    const [server, client] = await meet(hello(token), hello(token), (frame, way, index) =>
      way === direction && index === at ? alter(frame) : frame,
    );
    const shown = `${direction} ${at} ${alter.toString()}: ${codeOf(server)} ${codeOf(client)}`;
    assert.notEqual(codeOf(client), 'met', shown);
    // The server cannot know of the last frame; it has said nothing but what the client would have heard.
    if (direction === 'toServer' || at === 0) assert.notEqual(codeOf(server), 'met', shown);
  }
});

test("a server's proof is none of a client, nor the other way round", async () => {
  // A server that holds no key answers a caller with the caller's own proof.
  const [serverSide, clientSide] = await pair();
  const channel = new ControlChannel(serverSide, deadline());
  const client = sayHello(new ControlChannel(clientSide, deadline()), hello(token), {});
  channel.send({ protocol: 'test', version: 1, nonce: '0'.repeat(64), credential: 'token' });
  const { header, parts } = await channel.receiveFrame('greeting');
  channel.send({ proof: header['proof'] }, parts);
  await assert.rejects(client, { code: 'WL_UNAUTHORIZED' });
});

test('a proof of an earlier meeting is worth nothing in a later one', async () => {
  const recorded: Frame[] = [];
  const [server] = await meet(hello(token), hello(token), (frame, direction) => {
    if (direction === 'toServer') recorded.push(frame);
    return frame;
  });
  assert.equal(server.status, 'fulfilled');
  const [serverSide, clientSide] = await pair();
  for (const { header, parts } of recorded) {
    const { parts: _lengths, ...rest } = header;
    for (const piece of encodeFrame(rest, parts)) clientSide.write(piece);
  }
  clientSide.resume();
  await assert.rejects(
    receiveHello(new ControlChannel(serverSide, deadline()), hello(token), () => assert.fail('answered')),
    { code: 'WL_UNAUTHORIZED' },
  );
});

const junk: readonly unknown[] = [
  null,
  7,
  'text',
  [],
  {},
  { code: 7, message: 'x' },
  { code: 'WL_TIMEOUT' },
  { code: 'toString', message: 'x' },
  { code: '__proto__', message: 'x' },
  { code: 'WL_NOPE', message: 'x'.repeat(4000) },
  { code: 'WL_TIMEOUT', message: { toString: 7 } },
  { message: 'x', details: { details: null } },
];

test('junk in a refusal is WL_PROTOCOL, whatever it is', async () => {
  for (const refused of junk) {
    const [serverSide, clientSide] = await pair();
    for (const piece of encodeFrame({ refused })) serverSide.write(piece);
    const client = sayHello(new ControlChannel(clientSide, deadline()), hello(token), {});
    const result = await client.catch((error: unknown) => error);
    assert.ok(result instanceof WeftlineError, JSON.stringify(refused));
    assert.equal(result.code, 'WL_PROTOCOL', JSON.stringify(refused));
    assert.ok(result.message.length < 1000);
    serverSide.destroy();
  }
  const odd = decodeRefusal({ code: 'WL_TIMEOUT', message: 'late', details: [1], rank: 'x', cause: 7 }, 'it');
  assert.deepEqual(
    [odd.code, odd.message, odd.rank, odd.cause],
    ['WL_TIMEOUT', 'it refused: late', undefined, undefined],
  );
  assert.deepEqual(
    decodeRefusal({ code: 'WL_TIMEOUT', message: '', details: { a: 1, b: [2, 3], c: { d: 1 } } }, '').details,
    {
      a: 1,
      b: [2, 3],
    },
  );
});

function told(message: string): string {
  return decodeRefusal({ code: 'WL_TIMEOUT', message }, 'peer').message;
}

test('text of a peer is shortened and escaped', () => {
  assert.equal(
    told('a\u001b[31mred\r\n\u202e\u2028\ud800'),
    'peer refused: a\\u001b[31mred\\u000d\\u000a\\u202e\\u2028\\ud800',
  );
  assert.equal(told('äé漢😀'), 'peer refused: äé漢😀');
  assert.ok(told('x'.repeat(5000)).length < 700);
});

test('frames larger than a stranger may send, and garbage, end the hello at once', async () => {
  const prefix = Buffer.alloc(8);
  prefix.writeUInt32LE(1 << 20, 4);
  for (const bytes of [prefix, Buffer.alloc(64, 0xff), Buffer.from('GET / HTTP/1.1\r\n\r\n')]) {
    const [serverSide, clientSide] = await pair();
    clientSide.resume().write(bytes);
    await assert.rejects(
      receiveHello(new ControlChannel(serverSide, deadline()), hello(token), () => ({})),
      { code: 'WL_PROTOCOL' },
    );
  }
});

test('bytes that nobody asks for do not pile up', async () => {
  const [serverSide, clientSide] = await pair();
  const channel = new ControlChannel(serverSide, deadline());
  clientSide.on('error', () => {});
  const chunk = Buffer.alloc(1 << 20);
  let written = 0;
  // Until the peer's system takes no more, or far more than it should have.
  while (clientSide.write(chunk) || written < 64) {
    written += 1;
    if (written > 64) break;
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.ok(serverSide.bytesRead < 8 << 20, `${serverSide.bytesRead} bytes were read`);
  channel.hangUp();
  clientSide.destroy();
});
