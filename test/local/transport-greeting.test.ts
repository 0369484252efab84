// How two transports meet: over loopback TCP and UDP, both sides in this process, without an engine.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import { ControlChannel } from '#lib/meeting/control-channel.js';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { sayHello } from '#lib/meeting/hello.js';
import {
  type GreetingOptions,
  helloOf,
  introduce,
  type Meeting,
  acceptPeer,
  connectPeer,
} from '#lib/transport/host/greeting.js';
import { udp } from '#lib/transport/io/udp/udp-io.js';
import { encodeFrame, FrameReader, strangerLimits } from '#lib/meeting/frames.js';

const base: GreetingOptions = {
  io: udp,
  engines: [],
  name: 'host',
  paths: 3,
  segmentBytes: 0,
  bufferBytes: 1 << 20,
  segmentationOffload: true,
  authenticate: false,
  receiverCredits: false,
  eagerBytes: 1024,
  rails: [],
  spread: 'turn',
  connectionIds: [7],
};

/** Two ends of a TCP connection. */
async function pair(host = '127.0.0.1'): Promise<[Socket, Socket]> {
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const guest = connect((server.address() as AddressInfo).port, host);
  const [hostSide] = (await once(server, 'connection')) as [Socket];
  server.close();
  return [hostSide, guest];
}

function deadline(milliseconds = 120_000): number {
  return performance.now() + milliseconds;
}

const credentials = credentialsOf('secret');

function receive(
  channel: ControlChannel,
  options: GreetingOptions = base,
  adopt: (meeting: Meeting) => Promise<Meeting> = async (meeting) => meeting,
): Promise<Meeting> {
  return acceptPeer(channel, credentials, {
    open: async (hello) => ({ options, answer: `hello, ${String(hello)}` }),
    adopt,
  });
}

async function visit(channel: ControlChannel, options: GreetingOptions, token: string): Promise<Meeting> {
  const greeted = await sayHello(channel, helloOf(credentialsOf(token)), introduce(options, options.name));
  return connectPeer(channel, greeted, options);
}

async function greet(
  hostOptions: Partial<GreetingOptions>,
  { token = 'secret', ...guestOptions }: Partial<GreetingOptions> & { readonly token?: string },
  host?: string,
): Promise<PromiseSettledResult<Meeting>[]> {
  const [hostSocket, guestSocket] = await pair(host);
  const results = await Promise.allSettled([
    receive(new ControlChannel(hostSocket, deadline()), { ...base, ...hostOptions }),
    visit(new ControlChannel(guestSocket, deadline()), { ...base, name: 'guest', ...guestOptions }, token),
  ]);
  hostSocket.destroy();
  guestSocket.destroy();
  for (const result of results) {
    if (result.status === 'fulfilled') result.value.paths[Symbol.dispose]();
  }
  return results;
}

async function meet(hostOptions: Partial<GreetingOptions>, guestOptions: Partial<GreetingOptions>, host?: string) {
  const [one, two] = await greet(hostOptions, guestOptions, host);
  if (one?.status !== 'fulfilled') throw one?.reason;
  if (two?.status !== 'fulfilled') throw two?.reason;
  return [one.value, two.value] as const;
}

test('both sides learn the same secret, the paths both can have, and the largest packet that passes', async () => {
  const [host, guest] = await meet({ connectionIds: [7] }, { connectionIds: [9], paths: 2 });
  assert.equal(host.lanes[0]?.secret, guest.lanes[0]?.secret);
  assert.deepEqual([host.hello, guest.hello], ['guest', 'hello, guest']);
  assert.equal(host.paths.count, 2);
  assert.equal(guest.paths.count, 2);
  assert.deepEqual([host.lanes[0]?.remoteId, guest.lanes[0]?.remoteId], [9, 7]);
  assert.deepEqual([host.peerName, guest.peerName], ['guest', 'host']);
  assert.equal(host.segmentBytes, guest.segmentBytes);
  // The loopback of every Linux takes them.
  assert.ok(host.segmentBytes > 16_000);
});

test('the caller has its connection only once the side that was called has adopted its own', async () => {
  const [hostSocket, guestSocket] = await pair();
  const steps: string[] = [];
  const adopt = async (meeting: Meeting): Promise<Meeting> => {
    // Longer than what else the caller waits for.
    for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setTimeout(resolve, 5));
    steps.push('adopted');
    return meeting;
  };
  const visited = visit(new ControlChannel(guestSocket, deadline()), { ...base, name: 'guest' }, 'secret');
  const meetings = await Promise.all([
    receive(new ControlChannel(hostSocket, deadline()), base, adopt),
    visited.then((meeting) => {
      steps.push('connected');
      return meeting;
    }),
  ]);
  assert.deepEqual(steps, ['adopted', 'connected']);
  hostSocket.destroy();
  guestSocket.destroy();
  for (const { paths } of meetings) paths[Symbol.dispose]();
});

async function findNoRoom({ paths }: Meeting): Promise<Meeting> {
  paths[Symbol.dispose]();
  throw new WeftlineError('WL_CAPACITY', 'no room for a connection');
}

test('a caller hears why the side that was called could not adopt the connection', async () => {
  const [hostSocket, guestSocket] = await pair();
  const [host, guest] = await Promise.allSettled([
    receive(new ControlChannel(hostSocket, deadline()), base, findNoRoom),
    visit(new ControlChannel(guestSocket, deadline()), { ...base, name: 'guest' }, 'secret'),
  ]);
  for (const result of [host, guest]) {
    assert.equal(result.status, 'rejected');
    assert.equal((result.reason as { code: string }).code, 'WL_CAPACITY');
    assert.match((result.reason as Error).message, /no room for a connection/);
  }
  guestSocket.destroy();
});

test('the smaller packet size wins, and no offload means none', async () => {
  const [host, guest] = await meet({ segmentBytes: 1472, segmentationOffload: false }, {});
  assert.deepEqual([host.segmentBytes, guest.segmentBytes], [1472, 1472]);
  assert.equal(host.paths.cutsSends, false);
});

test('IPv6 works alike', async (t) => {
  const [host, guest] = await meet({ paths: 1 }, {}, '::1').catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EADDRNOTAVAIL' && error.code !== 'EAFNOSUPPORT') throw error;
    t.skip('no IPv6 here');
    return [];
  });
  assert.equal(host?.segmentBytes, guest?.segmentBytes);
});

test('packets are authenticated if either side demands it, with keys of this meeting and direction', async () => {
  const seen = new Set<string>();
  for (const [here, there] of [
    [false, false],
    [true, false],
    [false, true],
    [true, true],
  ] as const) {
    const [{ packetKeys: hostKeys } = {}, { packetKeys: guestKeys } = {}] = (
      await meet({ authenticate: here }, { authenticate: there })
    ).map(({ lanes }) => lanes[0]);
    if (!here && !there) {
      assert.deepEqual([hostKeys, guestKeys], [undefined, undefined]);
      continue;
    }
    assert.ok(hostKeys !== undefined && guestKeys !== undefined);
    assert.deepEqual(hostKeys.outgoing, guestKeys.incoming);
    assert.deepEqual(hostKeys.incoming, guestKeys.outgoing);
    for (const key of Object.values(hostKeys)) seen.add(Buffer.from(key).toString('hex'));
  }
  assert.equal(seen.size, 6);
});

test('receivers give credits if either side wants it', async () => {
  for (const here of [false, true]) {
    for (const there of [false, true]) {
      const meetings = await meet({ receiverCredits: here }, { receiverCredits: there });
      for (const { lanes, paths } of meetings) {
        paths[Symbol.dispose]();
        assert.equal(lanes[0]?.receiverCredits, here || there);
      }
    }
  }
});

/** Passes frames on; changed ones say that packets need not be authenticated. Returns how many it changed. */
function relay(from: Socket, to: Socket, isChanged: boolean): () => number {
  const reader = new FrameReader(strangerLimits);
  let changes = 0;
  from.on('error', () => {}).on('close', () => to.destroy());
  from.on('data', (chunk: Buffer) => {
    reader.push(chunk);
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) {
      const parts = frame.parts.map((part) => {
        const text = Buffer.from(part).toString();
        if (!isChanged || !text.includes('"authenticate":true')) return part;
        changes += 1;
        return Buffer.from(text.replace('"authenticate":true', '"authenticate":false'));
      });
      for (const piece of encodeFrame(frame.header, parts)) to.write(piece);
    }
  });
  return () => changes;
}

test('nobody in between can talk the two sides out of authenticating packets', async () => {
  for (const direction of ['to the host', 'to the guest']) {
    const [hostSocket, hostEnd] = await pair();
    const [guestEnd, guestSocket] = await pair();
    const changes = [
      relay(guestEnd, hostEnd, direction === 'to the host'),
      relay(hostEnd, guestEnd, direction === 'to the guest'),
    ];
    const results = await Promise.allSettled([
      receive(new ControlChannel(hostSocket, deadline())),
      visit(new ControlChannel(guestSocket, deadline()), { ...base, name: 'guest', authenticate: true }, 'secret'),
    ]);
    for (const socket of [hostSocket, hostEnd, guestEnd, guestSocket]) socket.destroy();
    assert.equal(changes[0]?.() === 1 || changes[1]?.() === 1, true, direction);
    assert.deepEqual(
      results.map(({ status }) => status),
      ['rejected', 'rejected'],
      direction,
    );
    const codes = results.map((result) => (result as PromiseRejectedResult).reason.code as string);
    assert.ok(codes.includes('WL_UNAUTHORIZED'), `${direction}: ${codes.join()}`);
  }
});

test('another token is refused on both sides', async () => {
  const results = await greet({}, { token: 'a guess' });
  for (const result of results) {
    assert.equal(result.status, 'rejected');
    assert.equal((result.reason as { code: string }).code, 'WL_UNAUTHORIZED');
  }
});

test('another version, other protocols and noise are refused with a reason', async () => {
  const frames: Buffer[] = [
    Buffer.concat(encodeFrame({ protocol: 'weftline-transport', version: 99, nonce: 'x' })),
    Buffer.concat(encodeFrame({ protocol: 'weftline-store', version: 1 })),
    Buffer.from('GET / HTTP/1.1\r\nHost: here\r\n\r\n'),
    Buffer.concat([randomBytes(100), Buffer.alloc(16, 0xff)]),
  ];
  for (const bytes of frames) {
    const [hostSocket, stranger] = await pair();
    const heard: Buffer[] = [];
    stranger.on('data', (chunk) => heard.push(chunk)).write(bytes);
    const ended = once(stranger, 'close');
    await assert.rejects(receive(new ControlChannel(hostSocket, deadline())), { code: 'WL_PROTOCOL' });
    await ended;
    assert.match(Buffer.concat(heard).toString(), /refused.*WL_PROTOCOL/);
  }
});

test('a caller that says nothing is given up at the deadline, one that leaves at once', async () => {
  const [hostSocket, silent] = await pair();
  await assert.rejects(receive(new ControlChannel(hostSocket, deadline(50))), { code: 'WL_TIMEOUT' });
  silent.destroy();
  const [other, leaving] = await pair();
  leaving.destroy();
  await assert.rejects(receive(new ControlChannel(other, deadline())), { code: 'WL_PEER_LOST' });
});
