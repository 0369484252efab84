// Messages of endpoints: receives of very many parts, peers that send nonsense, and peers that take nothing.
import assert from 'node:assert/strict';
import test from 'node:test';
import { DescriptorList, Endpoint, type EndpointConnection, type EndpointPart } from 'weftline/agent';
import {
  ENDPOINT_MAGIC,
  endpointMessage,
  endpointMessageKinds,
  MAX_OFFERED_BYTES,
} from '#lib/agent/endpoint/message.js';
import { Block } from '#lib/abi/layout.js';
import { MAX_NOTIFICATION_BYTES } from '#lib/agent/backend.js';
import type { BackendName } from '#lib/agent/backends/backend-table.js';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { whyMissing } from './support/missing-backend.ts';
import { until } from '../support/until.ts';
import { withCode } from '../support/with-code.ts';

type Kind = keyof typeof endpointMessageKinds;

/** Enough to meet on a busy machine, and not long to wait for. */
const PATIENCE_MS = 2000;

interface Two extends AsyncDisposable {
  readonly server: Endpoint;
  readonly client: Endpoint;
  /** Connections of the client, and of the server. */
  readonly there: EndpointConnection;
  readonly here: EndpointConnection;
}

async function openTwo(backend: BackendName, timeoutMs = 60_000): Promise<Two> {
  const options = { backends: [backend], settings: { timeoutMs } };
  const server = await Endpoint.create(options);
  const client = await Endpoint.create(options);
  const close = async (): Promise<void> => {
    await client.close();
    await server.close();
  };
  try {
    const [there, here] = await meet(client, server);
    return { server, client, there, here, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function meet(client: Endpoint, server: Endpoint): Promise<[EndpointConnection, EndpointConnection]> {
  return Promise.all([client.connect('127.0.0.1', server.port), server.accept()]);
}

/** A notification from the agent of one endpoint to that of another, as soon as there is room for it. */
async function say(from: Endpoint, to: Endpoint, message: Uint8Array): Promise<void> {
  for (const end = performance.now() + 60_000; ;) {
    try {
      return await from.agent.notify(to.agent.name, message, { backend: 'local' });
    } catch (error) {
      if (performance.now() > end || !withCode('WL_BUSY')(error)) throw error;
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
}

type Fields = Partial<Record<keyof typeof endpointMessage.offset, number>>;

/** One notification of an endpoint, as somebody may write it. */
function forge(kind: Kind | number, fields: Fields, payload: Uint8Array = new Uint8Array(0)): Uint8Array {
  const message = new Uint8Array(endpointMessage.size + payload.length);
  const head = new Block(endpointMessage, message.buffer, 0);
  const all: Fields = {
    magic: ENDPOINT_MAGIC,
    kind: typeof kind === 'number' ? kind : endpointMessageKinds[kind],
    payloadBytes: payload.length,
    ...fields,
  };
  for (const [field, value] of Object.entries(all)) head.set(field as keyof Fields, value);
  message.set(payload, endpointMessage.size);
  return message;
}

/** Every second piece of eight bytes. */
function scattered(region: EndpointPart['region'], count: number): EndpointPart[] {
  return Array.from({ length: count }, (_, index) => ({ region, offset: index * 16, bytes: 8 }));
}

for (const backend of backendNames) {
  const skip = (await whyMissing(backend)) ?? false;

  test(`${backend}: receives of any number of parts`, { skip }, async () => {
    await using two = await openTwo(backend);
    const { server, client, there, here } = two;
    const most = 200_000;
    const into = await server.allocate(most * 16);
    const out = await client.allocate(most * 8);
    for (let at = 0; at < out.bytes.length; at += 1) out.bytes[at] = (at * 7) % 251;
    for (const count of [2047, 2048, 4100, most]) {
      into.bytes.fill(255);
      // The second one is told behind the first, and both are cut into pieces.
      const [first, second] = [here.recv(scattered(into, count)), here.recv(scattered(into, count))];
      const sent = there.send({ region: out, bytes: count * 8 });
      assert.equal(await first.wait(), count * 8);
      assert.equal(await sent.wait(), count * 8);
      let wrong = 0;
      for (let at = 0; at < count * 16; at += 1) {
        const expected = at % 16 < 8 ? out.bytes[Math.floor(at / 16) * 8 + (at % 16)] : 255;
        if (into.bytes[at] !== expected) wrong += 1;
      }
      assert.equal(wrong, 0);
      assert.equal(await there.send({ region: out, bytes: 5 }).wait(), 5);
      assert.equal(await second.wait(), 5);
    }
  });
}

test('what a peer has offered is bounded: one side fails, the connection goes on', async () => {
  await using two = await openTwo('local');
  const { server, there, here, client } = two;
  const into = await server.allocate(4096);
  const part = { region: into, offset: 0, bytes: 1 };
  const parts = Array.from({ length: MAX_OFFERED_BYTES / 16 }, () => part);
  assert.throws(() => here.recv(parts), withCode('WL_CAPACITY', /4194304 parts/));
  const half = here.recv(parts.slice(0, parts.length / 2));
  assert.throws(() => here.recv(parts.slice(0, parts.length / 2)), withCode('WL_BUSY', /wait for some first/));
  const out = await client.allocate(1);
  await there.send({ region: out }).wait();
  assert.equal(await half.wait(), 1);
  const again = here.recv(part);
  await there.send({ region: out }).wait();
  assert.equal(await again.wait(), 1);
});

const list = DescriptorList.of({ kind: 'host', address: 4096, length: 64 }).encode();
const empty = new DescriptorList('host', new Float64Array(0), new Float64Array(0)).encode();
const unsafe = list.slice();
new DataView(unsafe.buffer).setBigUint64(16, 2n ** 53n, true);
/** In four pieces. */
const wide = new DescriptorList('host', new Float64Array(8000).fill(4096), new Float64Array(8000).fill(1)).encode();
/** A few bytes that speak of very many parts. */
const MANY = 2 ** 32 - 1;
const many = DescriptorList.blocks({ kind: 'host', address: 4096, length: MANY }, { blockBytes: 1 }).encode();
const PIECE = MAX_NOTIFICATION_BYTES - endpointMessage.size;

function offer(request: number, bytes: number, payload: Uint8Array): Uint8Array {
  return forge('offer', { request, bytes }, payload);
}

/** A piece of an offer of `wide`. */
function piece(payloadOffset: number, bytes: number, fields: Fields = {}): Uint8Array {
  const all = { request: 1, bytes: 8000, payloadBytes: wide.length, payloadOffset, ...fields };
  return forge('offer', all, wide.subarray(payloadOffset, payloadOffset + bytes));
}

/** What a peer may send that has offered nothing, while this side has one receive, of 64 bytes. */
const nonsense: Readonly<Record<string, readonly Uint8Array[]>> = {
  'an unknown kind': [forge(77, {})],
  'an offer that is no list': [offer(1, 64, new Uint8Array(40))],
  'an offer without a list': [offer(1, 64, new Uint8Array(0))],
  'an offer of no parts': [offer(1, 0, empty)],
  'an offer of ranges beyond 2^53': [offer(1, 64, unsafe)],
  'an offer of other bytes than its parts have': [offer(1, 65, list)],
  'an offer of more parts than a message may have': [offer(1, MANY, many)],
  'an offer that is the second but no first': [offer(2, 64, list)],
  'an offer twice': [offer(1, 64, list), offer(1, 64, list)],
  'a message longer than the receive': [forge('arrived', { request: 1, bytes: 65 })],
  'a message of no bytes': [forge('arrived', { request: 1, bytes: 0 })],
  'a message of more than 2^53 bytes': [forge('arrived', { request: 1, bytes: 2 ** 60 })],
  'a message for a receive that there is not': [forge('arrived', { request: 9, bytes: 1 })],
  'a message twice': [forge('arrived', { request: 1, bytes: 1 }), forge('arrived', { request: 1, bytes: 1 })],
  'a message with a payload': [forge('arrived', { request: 1, bytes: 1 }, Uint8Array.of(1))],
  'a refusal of what would fit': [forge('refused', { request: 1, bytes: 64 })],
  'a region that is no metadata': [forge('region', {}, new Uint8Array(100))],
  'a region without metadata': [forge('region', {})],
  'a piece from the middle': [piece(PIECE, PIECE)],
  'a piece that is too short': [piece(0, PIECE - 1)],
  'a piece twice': [piece(0, PIECE), piece(0, PIECE)],
  'a piece that is left out': [piece(0, PIECE), piece(wide.length - (wide.length % PIECE), wide.length % PIECE)],
  'a payload that grows on the way': [piece(0, PIECE), piece(PIECE, PIECE, { payloadBytes: wide.length + 16 })],
  'another message between the pieces': [piece(0, PIECE), offer(2, 64, list)],
  'a payload that ends before it begins': [forge('offer', { request: 1, payloadBytes: 8, payloadOffset: 16 })],
  'a payload beyond the limit': [piece(0, PIECE, { payloadBytes: MAX_OFFERED_BYTES + 1 })],
  'more beside an offer than the limit': [offer(1, 64, list), piece(0, PIECE, { payloadBytes: MAX_OFFERED_BYTES })],
};

test('a message that makes no sense ends its connection with WL_PROTOCOL, and no other one', async () => {
  await using innocent = await openTwo('local');
  const { server } = innocent;
  await using guilty = await Endpoint.create({ backends: ['local'] });
  const into = await server.allocate(64);
  const out = await innocent.client.allocate(64);
  for (const [what, messages] of Object.entries(nonsense)) {
    const [, here] = await meet(guilty, server);
    const [, other] = await meet(guilty, server);
    const receive = here.recv({ region: into });
    for (const message of messages) {
      new Block(endpointMessage, message.buffer, 0).set('connection', here.id);
      await say(guilty, server, message);
    }
    await until(() => here.error !== undefined);
    assert.equal(here.error?.code, 'WL_PROTOCOL', what);
    if (what !== 'a message twice')
      await assert.rejects(receive.wait(), withCode('WL_PROTOCOL', /Cannot read what the endpoint/));
    assert.throws(() => here.recv({ region: into }), withCode('WL_PROTOCOL'));
    assert.equal(other.error, undefined, what);
    const good = innocent.here.recv({ region: into });
    await innocent.there.send({ region: out }).wait();
    assert.equal(await good.wait(), 64, what);
    await other.close();
  }
});

test('what another peer says of a connection is not believed, nor what it says of memory of others', async () => {
  await using two = await openTwo('local');
  const { server, client, there, here } = two;
  await using stranger = await Endpoint.create({ backends: ['local'] });
  const [spoken, heard] = await meet(stranger, server);
  const into = await server.allocate(64);
  const out = await client.allocate(64);
  const receive = here.recv({ region: into });
  await say(stranger, server, forge('arrived', { connection: here.id, request: 1, bytes: 7 }));
  await say(stranger, server, forge('offer', { connection: here.id, request: 1, bytes: 64 }, list));
  await say(stranger, server, forge(77, { connection: here.id }));
  // Notifications that are not of endpoints, and such of connections that there are not.
  await say(stranger, server, Buffer.alloc(0));
  await say(stranger, server, Buffer.from('something else, of many bytes, for the program itself'));
  await say(stranger, server, forge('arrived', { connection: 4_000_000_000, request: 1, bytes: 7 }));
  // Behind all that, so that it has been heard when this is done.
  const last = heard.recv({ region: into });
  await spoken.send({ region: await stranger.allocate(1) }).wait();
  assert.equal(await last.wait(), 1);
  assert.equal(receive.state, 'pending');
  assert.equal(here.error, undefined);
  assert.equal(await there.send({ region: out }).wait(), 64);
  assert.equal(await receive.wait(), 64);
  // Metadata of the client, in a message of the stranger's own connection.
  const stolen = client.agent.localMetadata({ regions: [out], connections: false });
  await say(stranger, server, forge('region', { connection: heard.id }, stolen));
  await until(() => heard.error !== undefined);
  assert.equal(heard.error?.code, 'WL_PROTOCOL');
  assert.equal(here.error, undefined);
});

test('a peer that takes nothing fails those who wait for it when their time is over', async () => {
  for (const what of ['send', 'recv'] as const) {
    await using two = await openTwo('local', PATIENCE_MS);
    const { server, client, there, here } = two;
    const into = await server.allocate(64);
    const out = await client.allocate(65_536);
    let offers = 0;
    const hear = client.hear.bind(client);
    client.hear = (notification): void => {
      hear(notification);
      const kind = new Block(endpointMessage, notification.message.buffer, 0).get('kind');
      if (kind === endpointMessageKinds.offer) offers += 1;
    };
    here.recv({ region: into });
    await until(() => offers === 1);
    // Nothing of the server looks any more, as where its program blocks.
    server.agent.poll = () => false;
    await assert.rejects(async () => {
      for (;;) await client.agent.notify(server.agent.name, Buffer.alloc(8), { backend: 'local' });
    }, withCode('WL_BUSY'));
    const operation = what === 'send' ? there.send({ region: out, bytes: 16 }) : there.recv({ region: out });
    await assert.rejects(
      operation.wait({ timeoutMs: 60_000 }),
      withCode('WL_TIMEOUT', /Waited 2000 ms for room on the way to the endpoint .*has not taken/),
    );
    await until(() => there.error !== undefined);
    assert.equal(there.error?.code, 'WL_TIMEOUT');
    Reflect.deleteProperty(server.agent, 'poll');
  }
});

test('memory that was taken back and registered again at the same place is found', async () => {
  await using two = await openTwo('local');
  const { server, client, there, here } = two;
  const [source, target] = [new Uint8Array(new SharedArrayBuffer(64)), new Uint8Array(new SharedArrayBuffer(64))];
  let [out, into] = [await client.register(source), await server.register(target)];
  for (let round = 1; round <= 6; round += 1) {
    source.fill(round);
    const received = here.recv({ region: into });
    await there.send({ region: out }).wait();
    assert.equal(await received.wait(), 64);
    assert.ok(target.every((byte) => byte === round));
    if (round % 3 !== 0) {
      await out.close();
      out = await client.register(source);
    }
    if (round % 3 !== 1) {
      await into.close();
      into = await server.register(target);
    }
  }
});

test('receives that begin at the same places and are cut differently get their own bytes', async () => {
  await using two = await openTwo('local');
  const { server, client, there, here } = two;
  const out = await client.allocate(100);
  const into = await server.allocate(200);
  out.bytes.forEach((_, index) => (out.bytes[index] = index + 1));
  for (const cut of [50, 60, 40, 50]) {
    into.bytes.fill(0);
    const received = here.recv([
      { region: into, offset: 0, bytes: cut },
      { region: into, offset: 100, bytes: 100 - cut },
    ]);
    await there.send({ region: out }).wait();
    assert.equal(await received.wait(), 100);
    const came = Buffer.concat([into.bytes.subarray(0, cut), into.bytes.subarray(100, 200 - cut)]);
    assert.deepEqual(came, Buffer.from(out.bytes));
  }
});

test('a send that fails tells the receive that it has met', async () => {
  await using two = await openTwo('local');
  const { server, client, there, here } = two;
  const into = await server.allocate(64);
  const out = await client.allocate(64);
  const gone = await client.allocate(64);
  const sent = there.send({ region: gone });
  await gone.close();
  const received = here.recv({ region: into });
  await assert.rejects(sent.wait(), withCode('WL_INVALID_ARGUMENT', /registered/));
  await assert.rejects(received.wait(), withCode('WL_PEER_FAILED', /send that matched this receive/));
  const next = here.recv({ region: into });
  await there.send({ region: out }).wait();
  assert.equal(await next.wait(), 64);
});
