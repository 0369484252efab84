// Several engines per transport: what is posted in random order over lanes keeps the promises of a single engine.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { Settings } from 'weftline';
import { type Connection, type MemoryRegion, type RequestHandle, Transport } from 'weftline/transport';
import { testSeed } from '../support/seed.ts';
import { sampled } from '../support/extent.ts';

interface Pair extends AsyncDisposable {
  readonly near: Transport;
  readonly far: Transport;
  readonly here: Connection;
  readonly there: Connection;
}

async function openPair(settings: Partial<Settings>, farSettings: Partial<Settings> = settings): Promise<Pair> {
  const near = await Transport.create({ name: 'near', settings });
  const far = await Transport.create({ name: 'far', settings: farSettings });
  using listener = await far.listen({ host: '127.0.0.1', port: 0 });
  const [there, here] = await Promise.all([
    listener.accept({ timeoutMs: 120_000 }),
    near.connect({ host: '127.0.0.1', port: listener.port }),
  ]);
  return {
    near,
    far,
    here,
    there,
    [Symbol.asyncDispose]: async () => {
      await near.close();
      await far.close();
    },
  };
}

function memory(transport: Transport, bytes: number, remote = {}): Promise<MemoryRegion> {
  return transport.register(new Uint8Array(new SharedArrayBuffer(bytes)), remote);
}

function fill(bytes: Uint8Array, seed: number): void {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, Math.floor(bytes.length / 4));
  for (let at = 0; at < words.length; at++) words[at] = Math.imul(at + seed, 2_654_435_761);
}

const configurations: Readonly<Record<string, Partial<Settings>>> = {
  'one engine': { transportEngines: 1 },
  'two engines, two rails': { transportEngines: 2, transportRails: '127.0.0.1,127.0.0.2', transportPaths: 3 },
  'three engines, split, authenticated': {
    transportEngines: 3,
    transportSpread: 'split',
    transportAuthentication: true,
  },
  'three engines, by flow': { transportEngines: 3, transportSpread: 'flow' },
  'two engines, in turn': { transportEngines: 2 },
  'four engines, in turn': { transportEngines: 4 },
  'four engines, split': { transportEngines: 4, transportSpread: 'split' },
};

for (const [name, settings] of sampled(Object.entries(configurations), 4)) {
  describe(name, () => {
    // One after another on one connection: the threads of engines take longer to start than most tests.
    let shared: Pair;
    before(async () => {
      shared = await openPair(settings);
    });
    after(() => shared[Symbol.asyncDispose]());

    test('messages of a flow meet receives in order, also when some of both are cancelled', async () => {
      const random = seededRandom(testSeed());
      const { near, far, here, there } = shared;
      const most = 400_000;
      const out = await memory(near, most);
      const count = 60;
      const into = await memory(far, 16 * count);
      fill(out.bytes, 1);
      const small = await memory(near, 16 * count);
      fill(small.bytes, 2);
      const isCancelled = (): boolean => settings.transportEngines !== 1 && random() < 0.2;
      const sends: RequestHandle[] = [];
      const receives: RequestHandle[] = [];
      const gone = new Set<number>();
      for (let index = 0; index < count; index++) {
        const post = [
          () => sends.push(here.send({ region: small, offset: 16 * index, bytes: 16, flow: 3 })),
          () => receives.push(there.receive({ region: into, offset: 16 * index, bytes: 16, flow: 3 })),
        ];
        if (random() < 0.5) post.reverse();
        for (const one of post) one();
        if (isCancelled()) {
          gone.add(index);
          // Whichever comes first, both ends fail, or both succeed, and later ones keep their places.
          if (random() < 0.5) here.cancel(sends[index] as RequestHandle);
          else there.cancel(receives[index] as RequestHandle);
        }
      }
      for (let index = 0; index < count; index++) {
        const ends = await Promise.allSettled([near.wait(sends[index]!), far.wait(receives[index]!)]);
        if (!gone.has(index)) assert.deepEqual(ends.map(({ status }) => status).join(), 'fulfilled,fulfilled');
        if (ends[1]?.status === 'fulfilled') {
          assert.deepEqual(
            into.bytes.slice(16 * index, 16 * index + 16),
            small.bytes.slice(16 * index, 16 * index + 16),
            `message ${index}; cancelled: ${[...gone].join()}`,
          );
        }
      }
    });

    test('a message that is too large fails both ends, and nothing of it moves', async () => {
      const { near, far, here, there } = shared;
      const out = await memory(near, 1_000_000);
      const into = await memory(far, 1_000_000);
      fill(out.bytes, 3);
      const receive = there.receive({ region: into, bytes: 900_000 });
      const send = here.send({ region: out });
      await assert.rejects(near.wait(send), { code: 'WL_CAPACITY', message: /1000000 bytes.*900000/ });
      await assert.rejects(far.wait(receive), { code: 'WL_CAPACITY' });
      assert.ok(into.bytes.every((byte) => byte === 0));
      const [next, last] = [there.receive({ region: into }), here.send({ region: out, bytes: 777_777 })];
      assert.equal(await far.wait(next), 777_777);
      await near.wait(last);
      assert.equal(Buffer.compare(into.bytes.subarray(0, 777_777), out.bytes.subarray(0, 777_777)), 0);
    });

    test('a signal comes behind the data of all earlier writes of its flow, whichever lane carries them', async () => {
      const random = seededRandom(testSeed() + 1);
      const { near, far, here } = shared;
      const bytes = 2 << 20;
      const out = await memory(near, bytes);
      const into = await memory(far, bytes + 8, { write: true });
      const cell = new BigUint64Array(into.bytes.buffer, bytes, 1);
      let expected = 0n;
      for (let round = 1; round <= 12; round++) {
        fill(out.bytes, round * 1000);
        const requests: RequestHandle[] = [];
        for (let at = 0; at < bytes;) {
          const most = random() < 0.5 ? 20_000 : 900_000;
          const length = Math.min(bytes - at, 4 + Math.floor(random() * most));
          const part = { region: out, offset: at, bytes: length, flow: 9 };
          requests.push(here.write({ ...part, ...into.remote, remoteOffset: at }));
          at += length;
        }
        requests.push(here.signal({ ...into.remote, remoteOffset: bytes, add: round, flow: 9 }));
        expected += BigInt(round);
        if (round % 3 === 0) requests.push(here.flush(9));
        for (const end = performance.now() + 30_000; Atomics.load(cell, 0) !== expected;) {
          assert.ok(performance.now() < end, 'the signal does not come');
          await new Promise((resolve) => setImmediate(resolve));
        }
        // At the very moment that the counter shows the signal.
        assert.equal(Buffer.compare(into.bytes.subarray(0, bytes), out.bytes), 0, `round ${round}`);
        for (const request of requests) await near.wait(request);
      }
    });

    test('signals of many flows add to one cell, and none is lost', async () => {
      const { near, far, here, there } = shared;
      const cells = await memory(far, 64, { write: true });
      const back = await memory(near, 64, { write: true });
      const requests: [Transport, RequestHandle][] = [];
      for (let index = 0; index < 200; index++) {
        requests.push([near, here.signal({ ...cells.remote, add: 1 + (index % 3), flow: index % 16 })]);
        requests.push([far, there.signal({ ...back.remote, add: 1, flow: index % 16 })]);
      }
      for (const [transport, request] of requests) await transport.wait(request);
      assert.equal(new BigUint64Array(cells.bytes.buffer, 0, 1)[0], 399n);
      assert.equal(new BigUint64Array(back.bytes.buffer, 0, 1)[0], 200n);
    });

    test('signals by the thousand, both ways at once, all end, also between messages', async () => {
      const { near, far, here, there } = shared;
      const ends = [
        { transport: near, connection: here, cells: await memory(near, 8, { write: true }) },
        { transport: far, connection: there, cells: await memory(far, 8, { write: true }) },
      ] as const;
      const count = 3000;
      for (const messages of [false, true]) {
        const requests: [Transport, RequestHandle][] = [];
        const out = await memory(near, 70_000);
        for (let index = 0; index < count; index++) {
          for (const [end, { transport, connection }] of ends.entries()) {
            requests.push([transport, connection.signal({ ...ends[1 - end]!.cells.remote, add: 1 })]);
          }
          if (!messages || index % 20 !== 0) continue;
          requests.push(
            [far, there.receive({ region: await memory(far, 70_000) })],
            [near, here.send({ region: out })],
          );
        }
        for (const [transport, request] of requests) await transport.wait(request, { timeoutMs: 120_000 });
      }
      for (const { cells } of ends) assert.equal(new BigUint64Array(cells.bytes.buffer)[0], BigInt(2 * count));
    });

    test('reads of every size are intact; what is outside a region is refused, and nothing of it is written', async () => {
      const { near, far, here } = shared;
      const bytes = 1 << 20;
      const local = await memory(near, bytes);
      const there = await memory(far, bytes, { read: true, write: true });
      fill(there.bytes, 7);
      for (const length of [1, 100_000, 131_072, 524_289, bytes]) {
        local.bytes.fill(0);
        await near.wait(here.read({ region: local, bytes: length, ...there.remote }));
        assert.equal(Buffer.compare(local.bytes.subarray(0, length), there.bytes.subarray(0, length)), 0);
        assert.ok(local.bytes.subarray(length).every((byte) => byte === 0));
      }
      const untouched = there.bytes.slice();
      await assert.rejects(near.wait(here.write({ region: local, ...there.remote, remoteOffset: 16 })), {
        code: 'WL_INVALID_ARGUMENT',
      });
      const wrong = { ...there.remote, remoteKey: (there.remote.remoteKey ^ 1) >>> 0 };
      await assert.rejects(near.wait(here.write({ region: local, ...wrong })), { code: 'WL_UNAUTHORIZED' });
      assert.equal(Buffer.compare(there.bytes, untouched), 0);
      await there.close();
      await assert.rejects(near.wait(here.write({ region: local, ...there.remote })), { code: 'WL_UNAUTHORIZED' });
    });

    test('numbers that cannot be are refused by name', async () => {
      const { near, here, there, far } = shared;
      const region = await memory(near, 1 << 20, { write: true });
      const { remote } = region;
      const invalid = { code: 'WL_INVALID_ARGUMENT' };
      const refused = async (post: () => RequestHandle, what: string): Promise<void> => {
        await assert.rejects(async () => near.wait(post()), invalid, `${what}, ${JSON.stringify(settings)}`);
      };
      for (const flow of [-1, 1.5, 65_536, Number.NaN, Number.POSITIVE_INFINITY]) {
        const what = `flow ${flow}`;
        await refused(() => here.send({ region, flow }), `send: ${what}`);
        await refused(() => here.receive({ region, flow }), `receive: ${what}`);
        await refused(() => here.write({ region, flow, ...remote }), `write: ${what}`);
        await refused(() => here.read({ region, flow, ...remote }), `read: ${what}`);
        await refused(() => here.signal({ flow, add: 1, ...remote }), `signal: ${what}`);
        await refused(() => here.flush(flow), `flush: ${what}`);
      }
      for (const bytes of [-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 1e300, 2 ** 53, (1 << 20) + 1]) {
        const what = `bytes ${bytes}`;
        await refused(() => here.send({ region, bytes }), `send: ${what}`);
        await refused(() => here.receive({ region, bytes }), `receive: ${what}`);
        await refused(() => here.write({ region, bytes, ...remote }), `write: ${what}`);
        await refused(() => here.read({ region, bytes, ...remote }), `read: ${what}`);
      }
      // None of them took a turn.
      const into = await memory(far, 1 << 20);
      const received = there.receive({ region: into });
      await near.wait(here.send({ region }));
      assert.equal(await far.wait(received), 1 << 20);
    });

    test('statistics are sums over the lanes', async () => {
      await using pair = await openPair(settings);
      const { near, far, here, there } = pair;
      const out = await memory(near, 400_000);
      const into = await memory(far, 400_000);
      for (let index = 0; index < 8; index++) {
        const receive = there.receive({ region: into });
        await near.wait(here.send({ region: out }));
        await far.wait(receive);
      }
      const { connection, lanes, drops } = await here.statistics();
      assert.equal(lanes.length, settings.transportEngines);
      assert.equal(lanes.length, here.lanes);
      assert.ok(connection.sentBytes >= 8 * 400_000);
      const busy = lanes.filter((lane) => lane.connection.sentBytes > 0);
      assert.equal(busy.length, settings.transportSpread === 'flow' ? 1 : lanes.length);
      assert.equal(
        connection.sentBytes,
        lanes.reduce((sum, lane) => sum + lane.connection.sentBytes, 0),
      );
      assert.equal(connection.paths.length, here.paths);
      assert.equal(drops.secret, 0);
    });
  });
}

test('the side with fewer engines decides, and how they spread if both say so', async () => {
  await using pair = await openPair(
    { transportEngines: 4, transportSpread: 'split' },
    { transportEngines: 2, transportRails: '127.0.0.3' },
  );
  const { near, far, here, there } = pair;
  assert.deepEqual([here.lanes, there.lanes], [2, 2]);
  const { paths } = here;
  assert.deepEqual(here.rails, [{ local: '127.0.0.1', remote: '127.0.0.3', isUp: true, paths, livePaths: paths }]);
  const out = await memory(near, 600_000);
  const into = await memory(far, 600_000);
  fill(out.bytes, 5);
  const receive = there.receive({ region: into });
  await near.wait(here.send({ region: out }));
  assert.equal(await far.wait(receive), 600_000);
  assert.equal(Buffer.compare(out.bytes, into.bytes), 0);
});

test('requests under way on every lane fail with one reason when the connection closes', async () => {
  await using pair = await openPair({ transportEngines: 4, transportSpread: 'split' });
  const { near, far, here, there } = pair;
  const out = await memory(near, 4 << 20);
  const receives = [1, 2, 3].map((flow) => there.receive({ region: out, flow }));
  const sends = [4, 5, 6].map((flow) => here.send({ region: out, flow }));
  await here.close();
  for (const send of sends) await assert.rejects(near.wait(send), { code: 'WL_CLOSED' });
  for (const receive of receives) await assert.rejects(far.wait(receive), { code: 'WL_CLOSED' });
});

test('small messages arrive whichever sides send them ahead of their receives, and can be cancelled', async () => {
  const sides = [
    [1024, 1024],
    [0, 1024],
    [1024, 0],
    [8192, 16],
  ] as const;
  for (const transportEngines of [1, 2]) {
    for (const [nearBytes, farBytes] of sides) {
      await using pair = await openPair(
        { transportEngines, transportEagerBytes: nearBytes },
        { transportEngines, transportEagerBytes: farBytes },
      );
      const { near, far, here, there } = pair;
      const [out, into] = [await memory(near, 65_536), await memory(far, 65_536)];
      fill(out.bytes, 3);
      for (const [from, to, source, target] of [
        [here, there, out, into],
        [there, here, into, out],
      ] as const) {
        const [sender, receiver] = from === here ? [near, far] : [far, near];
        const cancelled = from.send({ region: source, bytes: 8 });
        from.cancel(cancelled);
        await assert.rejects(sender.wait(cancelled), { code: 'WL_CLOSED' });
        const sizes = [0, 8, 16, 17, 1024, 1025];
        const sends = sizes.map((bytes, at) => from.send({ region: source, offset: at * 2048, bytes }));
        // With several engines the message that was cancelled keeps its place.
        if (transportEngines > 1) {
          const met = to.receive({ region: target, offset: 40_000, bytes: 8 });
          await assert.rejects(receiver.wait(met), { code: 'WL_PEER_FAILED' });
        }
        for (const [at, bytes] of sizes.entries()) {
          const offset = 20_000 + at * 2048;
          assert.equal(await receiver.wait(to.receive({ region: target, offset, bytes: 1500 })), bytes);
          const sent = source.bytes.subarray(at * 2048, at * 2048 + bytes);
          assert.deepEqual(target.bytes.subarray(offset, offset + bytes), sent);
        }
        for (const send of sends) await sender.wait(send);
      }
    }
  }
});
