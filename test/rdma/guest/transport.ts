// In the guest: the transport over queue pairs of every service keeps its promises, also where the wire loses packets.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Settings } from 'weftline';
import { Transport } from 'weftline/transport';
import {
  driven,
  fillPattern,
  haveSame,
  memoryOf,
  openPair,
  type TransportPair,
  transportPromises,
} from '../../support/transport-conformance.ts';
import { command, setLink } from './support/command.ts';
import { withSecondWire } from './support/second-wire.ts';

const peerScript = fileURLToPath(new URL('../../local/support/transport-peer.js', import.meta.url));
const services = ['ud', 'uc', 'rc'] as const;
type Service = (typeof services)[number];

/** Without threads of engines, whose start takes the guest many seconds. */
const base = {
  transportIo: 'verbs',
  transportThread: false,
  // The guest's processor is emulated: what waits behind others waits long.
  transportTargetDelayUs: 100_000,
  transportMinRtoUs: 20_000,
  // Beside other guests it may stand still for seconds.
  transportGiveUpMs: 60_000,
  timeoutMs: 240_000,
} as const;
const devices = { near: { rdmaDevices: '=rxe0' }, far: { rdmaDevices: '=rxe1' } } as const;

function openVerbs(service: Service, settings: Partial<Settings> = {}): Promise<TransportPair> {
  return openPair({ ...base, rdmaService: service, ...settings }, devices);
}

for (const service of services) {
  test(`verbs/${service}: the promises of a connection`, async (t) => {
    await using pair = await openVerbs(service);
    for (const [name, holds] of Object.entries(transportPromises))
      await t.test(`${service}: ${name}`, () => holds(pair));
    const { failures, drops } = await pair.there.statistics();
    assert.deepEqual(failures, { queuePairs: 0, unsent: 0, broken: 0, strangers: 0 });
    // What asks for more than it may is dropped too, by reasons of its own.
    const { target, bounds, stale, ...damaged } = drops;
    assert.ok(
      Object.values(damaged).every((count) => count === 0),
      JSON.stringify({ target, bounds, stale, ...damaged }),
    );
  });
}

const isWhole = process.argv.includes('all');

for (const [service, settings] of [
  ...(isWhole ? ([['ud', { transportAuthentication: true, transportPaths: 16 }]] as const) : []),
  ['uc', { transportChecksum: 'full', transportPaths: 1, transportSegmentBytes: 32_768 }],
] as const) {
  test(`verbs/${service}: the promises hold with ${JSON.stringify(settings)}`, async (t) => {
    await using pair = await openVerbs(service, settings);
    for (const [name, holds] of Object.entries(transportPromises))
      await t.test(`${service}: ${name}`, () => holds(pair));
  });
}

/** Messages both ways; all must come once, whole and in order. */
async function exchange({ near, far, here, there }: TransportPair, count: number): Promise<void> {
  const most = 90_000;
  const ways = [
    { from: near, to: far, out: here, inn: there },
    { from: far, to: near, out: there, inn: here },
  ];
  const work = Promise.all(
    ways.map(async ({ from, to, out, inn }, way) => {
      const source = await memoryOf(from, most + count);
      const target = await memoryOf(to, count * most);
      fillPattern(source.bytes, way + 1);
      const sizes = Array.from({ length: count }, (_, index) => 1 + ((index * 7919 * (way + 3)) % most));
      const receives = sizes.map((_, index) => inn.receive({ region: target, offset: index * most, bytes: most }));
      const sends = sizes.map((bytes, index) => out.send({ region: source, offset: index, bytes }));
      const got = await Promise.all(receives.map((receive) => to.wait(receive)));
      await Promise.all(sends.map((send) => from.wait(send)));
      assert.deepEqual(got, sizes);
      for (const [index, bytes] of sizes.entries()) {
        haveSame(
          target.bytes.subarray(index * most, index * most + bytes),
          source.bytes.subarray(index, index + bytes),
        );
      }
    }),
  );
  // A side that has everything must still answer the other, which may have lost an ack.
  await driven(driven(work, near), far);
}

for (const [service, percent] of [
  ['ud', 5],
  ['uc', 5],
  ['rc', 1],
  ...(isWhole
    ? ([
        ['ud', 1],
        ['uc', 1],
      ] as const)
    : []),
] as const) {
  test(`verbs/${service}: at ${percent} % loss nothing is lost or doubled`, async () => {
    for (const end of [0, 1])
      command('tc', 'qdisc', 'replace', 'dev', `veth${end}`, 'root', 'netem', 'limit', '10000', 'loss', `${percent}%`);
    try {
      await using pair = await openVerbs(service);
      const retransmitted = async (): Promise<number> =>
        (await pair.here.statistics()).connection.retransmittedSegments;
      await exchange(pair, 16);
      if (service === 'rc') return;
      // None of few packets may be lost.
      for (let again = 0; again < 10 && (await retransmitted()) === 0; again++) await exchange(pair, 16);
      assert.ok((await retransmitted()) > 0, 'nothing was lost');
    } finally {
      for (const end of [0, 1]) command('tc', 'qdisc', 'del', 'dev', `veth${end}`, 'root');
    }
  });
}

test('a port that is down for a while costs time only; one that stays down ends the connection', async () => {
  await using pair = await openVerbs('ud', { transportGiveUpMs: 20_000 });
  await exchange(pair, 2);
  const source = await memoryOf(pair.near, 500_000);
  const target = await memoryOf(pair.far, 500_000);
  const both = (): Promise<unknown>[] => [
    pair.far.wait(pair.there.receive({ region: target })),
    pair.near.wait(pair.here.send({ region: source })),
  ];
  try {
    setLink('veth1', 'down');
    const delayed = both();
    await new Promise((resolve) => setTimeout(resolve, 300));
    setLink('veth1', 'up');
    await Promise.all(delayed);
    // The end takes the 20 seconds that a connection is given.
    if (!isWhole) return;
    setLink('veth1', 'down');
    const lost = await Promise.allSettled(both());
    for (const end of lost) {
      assert.equal(end.status, 'rejected');
      assert.match(String((end.reason as { code?: string }).code), /^WL_(?:PEER_LOST|TIMEOUT|CLOSED|PEER_FAILED)$/);
    }
  } finally {
    setLink('veth1', 'up');
  }
});

for (const service of process.argv.includes('all') ? services : (['ud'] as const)) {
  test(`verbs/${service}: a connection uses all ports of the list, and one that goes down is the death of its paths alone`, () =>
    withSecondWire(async () => {
      await using pair = await openPair(
        { ...base, rdmaService: service, transportPaths: 4 },
        { near: { rdmaDevices: '=rxe0,=rxe2' }, far: { rdmaDevices: '=rxe1,=rxe3' } },
      );
      const states = (): readonly unknown[] =>
        pair.here.rails.map(({ isUp, paths, livePaths }) => [isUp, paths, livePaths]);
      const addresses = pair.here.rails.map(({ local, remote }) => `${local.slice(-9)} ${remote.slice(-9)}`);
      assert.deepEqual(addresses, ['0a4d:0001 0a4d:0002', '0a4e:0002 0a4e:0003']);
      await exchange(pair, 4);
      assert.deepEqual(states(), [
        [true, 2, 2],
        [true, 2, 2],
      ]);
      const { paths } = (await pair.here.statistics()).connection;
      assert.ok(
        [0, 1].every((rail) => paths.some(({ path, sentSegments }) => path % 2 === rail && sentSegments > 0)),
        'a port has carried nothing',
      );
      setLink('veth3', 'down');
      for (let round = 0; round < 20 && pair.here.rails[1]?.isUp !== false; round += 1) await exchange(pair, 4);
      assert.deepEqual(states(), [
        [true, 2, 2],
        [false, 2, 0],
      ]);
      await exchange(pair, 4);
      setLink('veth3', 'up');
      // Queue pairs of connections that have failed stay so.
      if (service !== 'ud') return;
      for (let round = 0; round < 200 && pair.here.rails[1]?.isUp !== true; round += 1) await exchange(pair, 1);
      assert.equal(pair.here.rails[1]?.isUp, true);
    }));
}

test('sides that carry packets in different ways refuse each other, and both are named', async () => {
  for (const [near, far, said] of [
    [
      'verbs',
      'udp',
      /far carries packets over|near carries packets over verbs\/ud, far over udp: set WEFTLINE_TRANSPORT_IO/,
    ],
    ['udp', 'verbs', /near carries packets over udp, far over verbs\/ud/],
  ] as const) {
    const shared = { transportThread: false, rdmaService: 'ud' } as const;
    await assert.rejects(
      openPair(shared, { near: { ...devices.near, transportIo: near }, far: { ...devices.far, transportIo: far } }),
      { code: 'WL_CONFIG', message: said },
    );
  }
  await assert.rejects(
    openPair(base, { near: { ...devices.near, rdmaService: 'ud' }, far: { ...devices.far, rdmaService: 'uc' } }),
    { code: 'WL_CONFIG', message: /near carries packets over verbs\/ud, far over verbs\/uc/ },
  );
});

test('a transport without a port that can be used does not begin', async () => {
  const settings = { ...base, rdmaDevices: '^rxe' };
  await assert.rejects(Transport.create({ settings }), {
    code: 'WL_UNSUPPORTED',
    message: /^Packets cannot go over verbs: rxe0 port 1: /,
  });
});

test('a killed peer is noticed at once', async () => {
  await using transport = await Transport.create({
    name: 'near',
    settings: { ...base, rdmaService: 'ud', ...devices.near },
  });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const settings = JSON.stringify({ ...base, rdmaService: 'ud', ...devices.far });
  const child = spawn(process.execPath, [peerScript, 'flood', String(listener.port), settings], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  const connection = await listener.accept({ timeoutMs: 240_000 });
  const region = await memoryOf(transport, 8 << 20);
  await transport.wait(connection.receive({ region, bytes: 8 << 20 }));
  child.kill('SIGKILL');
  await once(child, 'exit');
  await assert.rejects(
    async () => {
      for (;;) await transport.wait(connection.receive({ region }));
    },
    { code: 'WL_PEER_LOST', message: /the other process/ },
  );
});

test('nothing of a transport is left after close', async () => {
  const { stdout: before } = spawnSync('rdma', ['resource', 'show'], { encoding: 'utf8' });
  for (const service of services) {
    await using pair = await openVerbs(service);
    await exchange(pair, 1);
  }
  assert.equal(spawnSync('rdma', ['resource', 'show'], { encoding: 'utf8' }).stdout, before);
});
