// In the guest: the packet I/O over queue pairs by itself: what it costs, what strangers can do, and that it sleeps.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sendFlag, sendOpcode } from '#lib/native/verbs/c-structs.js';
import { NativeBlock } from '#lib/native/library.js';
import { VerbsContext, type VerbsOperations } from '#lib/native/verbs/context.js';
import { AddressHandle, type QueuePairService } from '#lib/native/verbs/queue-pair.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { readSettings } from '#lib/settings/settings.js';
import { Engine } from '#lib/transport/engine/engine.js';
import type { Region } from '#lib/transport/engine/region.js';
import type { TransportEngine } from '#lib/transport/engine/transport-engine.js';
import type { Burst, PacketIo, ReceivedBatch } from '#lib/transport/io/packet-io.js';
import type { MadeEnds } from '#lib/transport/io/packet-io-kind.js';
import { VerbsLoop } from '#lib/transport/io/verbs/verbs-io.js';
import { Side } from './support/pair.ts';

const services = ['ud', 'uc', 'rc'] as const;
const HEADER = 64;
const PACKET = 4096;
const PAYLOAD = PACKET - HEADER;

interface Calls {
  total: number;
}

/** Counts the native calls of the hot paths of all contexts that are opened meanwhile. */
function countCalls<T>(open: () => T): { readonly calls: Calls; readonly made: T } {
  const calls = { total: 0 };
  const real = VerbsContext.open.bind(VerbsContext);
  VerbsContext.open = (device) => {
    const context = real(device);
    const operations = context.operations as unknown as Record<keyof VerbsOperations, (...words: number[]) => number>;
    for (const [name, operation] of Object.entries(operations)) {
      operations[name as keyof VerbsOperations] = (...words) => {
        calls.total += 1;
        return operation(...words);
      };
    }
    return context;
  };
  try {
    return { calls, made: open() };
  } finally {
    VerbsContext.open = real;
  }
}

interface End {
  readonly loop: VerbsLoop;
  readonly io: PacketIo;
  readonly made: MadeEnds;
  readonly seen: Seen;
}

interface Seen {
  /** What came, packet by packet. */
  readonly arrived: Uint8Array[];
  /** Turns of the engine. */
  turns: number;
}

/** An engine that keeps what comes, and never has anything to do. */
function keeper(seen: Seen): TransportEngine {
  const engine: Partial<TransportEngine> = {
    onPackets: (batch: ReceivedBatch) => {
      for (let entry = 0; entry < batch.count; entry += 1) {
        const from = batch.offset[entry]!;
        const end = from + batch.length[entry]!;
        const step = batch.segmentBytes[entry] === 0 ? end - from : batch.segmentBytes[entry]!;
        for (let at = from; at < end; at += step) seen.arrived.push(batch.bytes.slice(at, Math.min(end, at + step)));
      }
    },
    onTimer: () => {
      seen.turns += 1;
    },
    nextDeadline: () => Number.POSITIVE_INFINITY,
  };
  return engine as TransportEngine;
}

function openEnd(device: string, service: QueuePairService, paths: number): End {
  let io: PacketIo | undefined;
  const seen: Seen = { arrived: [], turns: 0 };
  const loop = new VerbsLoop({
    settings: readSettings({ rdmaDevices: `=${device}` }),
    service,
    packetBytes: () => PACKET,
    engine: (given) => {
      io = given;
      return keeper(seen);
    },
  });
  return { loop, io: io as PacketIo, made: loop.ends.open({ count: paths, rails: 1 }), seen };
}

/** `peer`: as `one` calls the other, who calls it 0. */
function join(one: Pick<End, 'loop' | 'made'>, other: Pick<End, 'loop' | 'made'>, peer = 0): void {
  one.loop.ends.connect({ ends: one.made.ends, offer: other.made.offer });
  other.loop.ends.connect({ ends: other.made.ends, offer: one.made.offer });
  one.loop.addPeer(peer, { ends: one.made.ends, rails: 1, segments: 1 });
  other.loop.addPeer(0, { ends: other.made.ends, rails: 1, segments: 1 });
}

function regionOf(bytes: number): Region {
  const block = new NativeBlock(bytes);
  for (let index = 0; index < bytes; index += 1) block.bytes[index] = index * 7 + (index >> 8);
  return { id: 1, key: 1, bytes: block.bytes, address: block.address, remote: { read: false, write: false } };
}

function burstOf(region: Region, path: number, count: number): Burst {
  return {
    peer: 0,
    path,
    count,
    headerOffset: 0,
    headerBytes: HEADER,
    region,
    payloadOffset: 0,
    payloadBytes: PAYLOAD,
    lastPayloadBytes: 100,
    urgent: false,
  };
}

/** Nothing that was sent of the region is read any more. */
function isQuiet({ io }: End, region: Region): boolean {
  return io.readersOf?.(region) === undefined;
}

async function until(done: () => boolean): Promise<void> {
  const end = Date.now() + 120_000;
  while (!done()) {
    assert.ok(Date.now() < end, 'it did not come');
    await new Promise((resolve) => setImmediate(resolve));
  }
}

for (const service of services) {
  test(`verbs/${service}: 16 packets take at most 3 native calls on each side, and arrive as they were sent`, async () => {
    const { calls: sending, made: a } = countCalls(() => openEnd('rxe0', service, 2));
    const { calls: receiving, made: b } = countCalls(() => openEnd('rxe1', service, 2));
    try {
      join(a, b);
      const region = regionOf(16 * PAYLOAD);
      a.io.adopt?.(region);
      for (let packet = 0; packet < 16; packet += 1)
        a.io.arena.fill(packet + 1, packet * HEADER, (packet + 1) * HEADER);
      let atOnce = 0;
      // The first receives are posted already; both sides' completions of the posts before are taken.
      for (let round = 0; round < 12; round += 1) {
        await until(() => isQuiet(a, region));
        b.seen.arrived.length = 0;
        const sent = sending.total;
        a.io.send(burstOf(region, round % 2, 16));
        a.io.flush();
        assert.equal(sending.total - sent, 1, 'one post');
        // Once everything has left, everything is on the wire to the peer, which works in this kernel.
        await until(() => isQuiet(a, region));
        await new Promise((resolve) => setTimeout(resolve, 100));
        const received = receiving.total;
        b.loop.step();
        // A poll that brings 16, a post of their receives, and a poll that finds nothing; nothing is under way here.
        if (b.seen.arrived.length === 16) {
          assert.ok(receiving.total - received <= 3, `${receiving.total - received} calls`);
          atOnce += 1;
        }
        // A processor that others use may have brought some of them later.
        await until(() => {
          if (b.seen.arrived.length < 16) b.loop.step();
          return b.seen.arrived.length === 16;
        });
        for (const [packet, bytes] of b.seen.arrived.entries()) {
          const payload = packet === 15 ? 100 : PAYLOAD;
          assert.equal(bytes.length, HEADER + payload);
          assert.ok(bytes.subarray(0, HEADER).every((byte) => byte === packet + 1));
          const from = packet * PAYLOAD;
          assert.equal(Buffer.compare(bytes.subarray(HEADER), region.bytes.subarray(from, from + payload)), 0);
        }
      }
      assert.ok(atOnce > 0, 'no 16 packets came at once');
      const before = sending.total;
      a.io.send(burstOf(region, 0, 16));
      a.io.flush();
      await new Promise((resolve) => setTimeout(resolve, 100));
      a.loop.step();
      assert.ok(
        sending.total - before <= 3,
        `${sending.total - before} calls to send 16 packets and take their completions`,
      );
      a.io.abandon?.(region);
    } finally {
      a.loop[Symbol.dispose]();
      b.loop[Symbol.dispose]();
    }
  });
}

test('verbs/ud: datagrams of strangers are dropped and counted, whatever is in them', async () => {
  const a = openEnd('rxe0', 'ud', 1);
  const settings = readSettings({ rdmaDevices: '=rxe1' });
  const loop = new VerbsLoop({
    settings,
    service: 'ud',
    packetBytes: () => PACKET,
    engine: (io) => new Engine({ io, settings }),
  });
  using stranger = new Side('rxe0');
  try {
    const b = { loop, made: loop.ends.open({ count: 1, rails: 1 }) };
    join(a, b);
    const [{ number, queueKey } = { number: 0, queueKey: 0 }] = b.made.offer['ends'] as {
      number: number;
      queueKey: number;
    }[];
    const [port] = b.made.offer['rails'] as { gid: string }[];
    const gid = Buffer.from(String(port?.gid), 'hex');
    using handle = new AddressHandle(stranger.domain, { port: 1, gidIndex: stranger.gidIndex, remoteGid: gid });
    const queuePair = stranger.queuePair('ud');
    queuePair.open();
    const random = seededRandom(5);
    for (let index = 0; index < 65_536; index += 1) stranger.memory.bytes[index] = random() * 256;
    const send = (key: number, from: number, bytes: number): void => {
      assert.ok(queuePair.sends.start(sendOpcode.send, sendFlag.signaled, 0));
      queuePair.sends.add(stranger.memory.address + from, bytes, stranger.region.localKey);
      queuePair.sends.datagram(handle.address, number, key);
      queuePair.sends.post();
    };
    for (let count = 0; count < 20; count += 1) send(queueKey ^ 1, count * 64, 64 + count * 50);
    for (let count = 0; count < 20; count += 1) send(queueKey, count * 64, 1 + count * 200);
    await until(() => {
      loop.step();
      return loop.failures['strangers'] === 20;
    });
    const dropped = (): number => Object.values(loop.engine.drops).reduce((sum, count) => sum + count, 0);
    assert.equal(dropped(), 0);
    // The peer itself may send anything as well.
    const region = regionOf(16 * PAYLOAD);
    for (let round = 0; round < 20; round += 1) {
      for (let at = 0; at < 16 * HEADER; at += 1) a.io.arena[at] = random() * 256;
      await until(() => a.io.room() > 0);
      a.io.send({ ...burstOf(region, 0, 1 + (round % 15)), headerOffset: (round % 2) * HEADER });
      a.io.flush();
    }
    const sent = Array.from({ length: 20 }, (_, round) => 1 + (round % 15)).reduce((sum, count) => sum + count, 0);
    await until(() => {
      loop.step();
      return dropped() === sent;
    });
    assert.deepEqual(loop.failures, { queuePairs: 0, unsent: 0, broken: 0, strangers: 20 });
  } finally {
    a.loop[Symbol.dispose]();
    loop[Symbol.dispose]();
  }
});

test('a loop without work sleeps until a packet comes', async () => {
  const a = openEnd('rxe0', 'uc', 1);
  const b = openEnd('rxe1', 'uc', 1);
  try {
    join(a, b);
    while (b.loop.step());
    await new Promise((resolve) => setTimeout(resolve, 10));
    const begin = performance.now();
    let sleeps = 0;
    while (performance.now() - begin < 1000) {
      b.loop.step();
      b.loop.sleep();
      sleeps += 1;
    }
    // A sleep lasts 100 ms unless something ends it; a loop that polled would come round thousands of times.
    assert.ok(sleeps <= 30, `${sleeps} sleeps in a second`);
    const region = regionOf(PAYLOAD);
    a.io.adopt?.(region);
    a.io.send(burstOf(region, 0, 1));
    a.io.flush();
    for (let looks = 0; b.seen.arrived.length === 0 && looks < 100; looks += 1) {
      b.loop.sleep();
      b.loop.step();
    }
    assert.equal(b.seen.arrived.length, 1);
  } finally {
    a.loop[Symbol.dispose]();
    b.loop[Symbol.dispose]();
  }
});

test('a loop that waits for room is not left asleep by sends that end before it asks to be woken', async () => {
  const a = openEnd('rxe0', 'uc', 1);
  const b = openEnd('rxe1', 'uc', 1);
  try {
    join(a, b);
    const region = regionOf(16 * PAYLOAD);
    a.io.adopt?.(region);
    // Without a look at completions, until nothing more is taken.
    while (a.loop.failures['unsent'] === 0) a.io.send(burstOf(region, 0, 16));
    a.io.flush();
    // All of it has left meanwhile.
    await new Promise((resolve) => setTimeout(resolve, 500));
    while (b.loop.step());
    const { turns } = a.seen;
    a.loop.sleep();
    assert.equal(a.seen.turns, turns + 1, 'the engine had no turn');
    assert.ok(a.io.room() > 0);
  } finally {
    a.loop[Symbol.dispose]();
    b.loop[Symbol.dispose]();
  }
});

test('verbs/rc: a peer that is gone holds up what was sent to it, and nothing else', async () => {
  const a = openEnd('rxe0', 'rc', 1);
  const gone = openEnd('rxe1', 'rc', 1);
  const other = openEnd('rxe1', 'rc', 1);
  try {
    join(a, gone);
    join({ loop: a.loop, made: a.loop.ends.open({ count: 1, rails: 1 }) }, other, 1);
    gone.loop[Symbol.dispose]();
    const region = regionOf(16 * PAYLOAD);
    a.io.adopt?.(region);
    a.io.send(burstOf(region, 0, 16));
    a.io.flush();
    const readers = a.io.readersOf?.(region, 0);
    assert.equal(readers?.areThrough(), false);
    let rounds = 0;
    const sendToOther = async (): Promise<void> => {
      a.io.send({ ...burstOf(region, 0, 16), peer: 1 });
      a.io.flush();
      rounds += 1;
      await until(() => {
        a.loop.step();
        other.loop.step();
        return other.seen.arrived.length === 16 * rounds && a.io.readersOf?.(region, 1) === undefined;
      });
    };
    await sendToOther();
    while (!readers.areThrough()) await sendToOther();
    assert.equal(a.loop.failures['queuePairs'], 1);
    await sendToOther();
    a.io.abandon?.(region);
  } finally {
    for (const { loop } of [a, other]) loop[Symbol.dispose]();
  }
});

for (const service of services) {
  test(`verbs/${service}: connections that come and go under load leave every receive to those who stay`, async () => {
    const a = openEnd('rxe0', service, 1);
    const b = openEnd('rxe1', service, 1);
    try {
      const region = regionOf(16 * PAYLOAD);
      a.io.adopt?.(region);
      const flood = (peer: number, bursts: number): void => {
        for (let burst = 0; burst < bursts; burst += 1) a.io.send({ ...burstOf(region, 0, 16), peer });
        a.io.flush();
      };
      join(a, b);
      for (let round = 1; round <= 4; round += 1) {
        const [near, far] = [a, b].map(({ loop }) => ({ loop, made: loop.ends.open({ count: 1, rails: 1 }) }));
        near!.loop.ends.connect({ ends: near!.made.ends, offer: far!.made.offer });
        far!.loop.ends.connect({ ends: far!.made.ends, offer: near!.made.offer });
        near!.loop.addPeer(round, { ends: near!.made.ends, rails: 1, segments: 1 });
        far!.loop.addPeer(round, { ends: far!.made.ends, rails: 1, segments: 1 });
        flood(round, 4);
        for (const { loop } of [b, a]) loop.removePeer(round);
        await until(() => {
          for (const { loop } of [a, b]) loop.step();
          return [a, b].every(({ loop }) => loop.ends.leaving.count === 0);
        });
      }
      b.seen.arrived.length = 0;
      for (let burst = 1; burst <= 8; burst += 1) {
        flood(0, 1);
        await until(() => {
          b.loop.step();
          a.loop.step();
          return b.seen.arrived.length === 16 * burst;
        });
      }
      assert.deepEqual(
        [a, b].map(({ loop }) => loop.failures['queuePairs']),
        [0, 0],
      );
    } finally {
      for (const { loop } of [a, b]) loop[Symbol.dispose]();
    }
  });
}
