// The simulated network by itself: order of events, times on links, losses, failures, routes.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import { seededRandom } from '#lib/core/seeded-random.js';
import { EventQueue, MARK_CORRUPT, MARK_ECN, Network, PacketPool } from '#lib/programs/sim/network.js';
import {
  changeRail,
  defaultLink,
  ecmpHash,
  fatTree,
  hostLinks,
  leafSpine,
  type LinkOptions,
  type NetworkTopology,
  railLinks,
  routeOf,
  separateRails,
  SHARED,
  sharedRails,
  star as starNetwork,
} from '#lib/programs/sim/topology.js';
import { SimulatedIo } from '#lib/programs/sim/simulated-host.js';

test('events come by time, and in order of insertion where times are equal', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(20), fc.nat(15), fc.boolean()), { maxLength: 400 }), (steps) => {
      const queue = new EventQueue();
      let waiting: { time: number; kind: number; subject: number }[] = [];
      let now = 0;
      for (const [subject, [delay, kind, pop]] of steps.entries()) {
        queue.push(now + delay, kind, subject);
        waiting.push({ time: now + delay, kind, subject });
        if (!pop) continue;
        waiting = waiting.toSorted((a, b) => a.time - b.time || a.subject - b.subject);
        assert.ok(queue.pop());
        const { time, kind: popped, subject: who } = queue;
        assert.deepEqual({ time, kind: popped, subject: who }, waiting.shift());
        now = time;
      }
      assert.equal(queue.size, waiting.length);
    }),
  );
});

test('an event holds the highest kind and subject', () => {
  const queue = new EventQueue();
  queue.push(1, 15, 2 ** 28 - 1);
  assert.ok(queue.pop());
  assert.deepEqual([queue.kind, queue.subject], [15, 2 ** 28 - 1]);
  assert.equal(queue.pop(), false);
});

test('whole packets of any place lie within the bytes, also where their payload does not travel', () => {
  const packets = new PacketPool(4096, 2);
  for (let count = 0; count < 1000; count++) {
    const packet = packets.take(count % 3 === 0 ? 4096 : 64);
    assert.ok(packets.starts[packet]! + 4096 <= packets.bytes.length);
  }
});

/** A network with one function per thing a test does to it. */
function start(topology: NetworkTopology, seed = 1) {
  const events = new EventQueue();
  const packets = new PacketPool(2000, 2);
  const network = new Network({ topology, events, packets, random: seededRandom(seed), arrivalKind: 0 });
  const send = (source: number, destination: number, now: number): number => {
    const packet = packets.take(1000);
    packets.sources[packet] = source;
    packets.destinations[packet] = destination;
    packets.paths[packet] = 0;
    packets.lengths[packet] = 1000;
    packets.wireBytes[packet] = 1000;
    network.send(packet, now);
    return packet;
  };
  const run = (until = Number.POSITIVE_INFINITY): { time: number; packet: number; marks: number }[] => {
    const arrived: { time: number; packet: number; marks: number }[] = [];
    while (events.pop()) {
      if (events.time > until) {
        events.push(events.time, 0, events.subject);
        break;
      }
      if (!network.arrive(events.subject, events.time)) continue;
      arrived.push({ time: events.time, packet: events.subject, marks: packets.marks[events.subject] as number });
      packets.release(events.subject);
    }
    return arrived;
  };
  return { events, packets, network, send, run };
}

function near(value: number, expected: number): void {
  assert.ok(Math.abs(value / expected - 1) < 0.15, `${value} is not near ${expected}`);
}

const star = (link: Partial<LinkOptions> = {}, hosts = 3): NetworkTopology =>
  starNetwork({ hosts, link: { ...defaultLink, gigabitsPerSecond: 8, ...link } });

test('a packet takes its time on each link, and waits behind others', () => {
  const { send, run } = start(star());
  // 8 Gb/s: 1000 bytes take 1 µs; two links of 1 µs each.
  send(0, 2, 0);
  send(0, 2, 0);
  send(1, 2, 0.5);
  assert.deepEqual(
    run().map(({ time }) => time),
    [4, 5, 6],
  );
});

test('a full queue drops, a long one marks', () => {
  const { send, run, network, packets } = start(star({ queueBytes: 3500, ecnBytes: 1500 }, 6));
  // Five packets meet before the link of host 5. The hosts' own links have room for whatever their hosts send.
  for (let source = 0; source < 5; source += 1) send(source, 5, 0);
  assert.deepEqual(
    run().map(({ marks }) => marks),
    [0, 0, MARK_ECN],
  );
  assert.equal(network.counts.droppedFull, 2);
  assert.equal(network.linkLoad(11).bytes, 3000);
  assert.equal(network.linkLoad(11).longestQueueBytes, 2000);
  assert.equal(packets.used, 0);
});

test('loss, duplication and corruption happen as often as asked', () => {
  const { send, run, network, packets } = start(star({ loss: 0.1, duplicate: 0.05, corrupt: 0.2 }), 7);
  for (let count = 0; count < 4000; count += 1) send(0, 1, count * 10);
  const arrived = run();
  const { counts } = network;
  near(counts.droppedLoss, 4000 * 0.1 + 3600 * 1.05 * 0.1);
  near(counts.duplicated, 3600 * 0.05 * (1 + 0.9 * 1.05));
  assert.equal(arrived.length, 4000 + counts.duplicated - counts.droppedLoss);
  near(arrived.filter(({ marks }) => (marks & MARK_CORRUPT) !== 0).length, arrived.length * (1 - 0.8 * 0.8));
  assert.equal(packets.used, 0);
});

test('packets that arrive together are joined, but for an empty one', () => {
  const { network, packets } = start(star());
  const nic = { burstSegments: 16, sendBufferBytes: 100_000, carryPayload: true, join: true };
  const io = new SimulatedIo({ ...nic, host: 1, lane: 0, lanePaths: 1, network, packets, uplinks: [1] });
  for (const length of [100, 100, 0, 100, 100, 40]) {
    const packet = packets.take(100);
    packets.lengths[packet] = length;
    packets.sources[packet] = 0;
    packets.paths[packet] = 0;
    io.receive(packet);
  }
  let entries: number[][] = [];
  io.poll(({ count, length, segmentBytes }) => {
    entries = Array.from({ length: count }, (_, entry) => [length[entry]!, segmentBytes[entry]!]);
  });
  assert.deepEqual(entries, [
    [200, 100],
    [0, 0],
    [240, 100],
  ]);
});

test('some packets overtake others where links reorder', () => {
  const { send, run } = start(star({ reorder: 0.1, jitter: 20 }));
  const sent: number[] = [];
  for (let count = 0; count < 200; count += 1) sent.push(send(0, 1, 0));
  const order = run().map(({ packet }) => packet);
  assert.notDeepEqual(order, sent);
  assert.equal(order.length, sent.length);
});

test('a link that fails loses what is on it and what comes, until it recovers', () => {
  const { send, run, network, packets } = start(star());
  send(0, 1, 0);
  assert.equal(run(1.5).length, 0);
  network.fail(0);
  send(0, 1, 1.6);
  assert.equal(run(3).length, 0);
  network.recover(0, 3);
  send(0, 1, 3);
  assert.deepEqual(
    run().map(({ time }) => time),
    [7],
  );
  assert.equal(network.counts.droppedDown, 2);
  assert.equal(packets.used, 0);
});

test('the same seed gives the same run', () => {
  assert.deepEqual(sendSome(3), sendSome(3));
  assert.notDeepEqual(sendSome(3), sendSome(4));
});

function sendSome(seed: number): unknown {
  const { send, run } = start(star({ loss: 0.1, reorder: 0.5, jitter: 9, corrupt: 0.1, duplicate: 0.1 }), seed);
  for (let count = 0; count < 300; count += 1) send(count % 2, 2, count);
  return run();
}

const topologies: readonly NetworkTopology[] = [
  star(),
  separateRails(starNetwork({ hosts: 5, link: defaultLink }), 4),
  separateRails(fatTree({ ports: 4, link: defaultLink, fabric: defaultLink, ecmp: 1 }), 2),
  sharedRails(leafSpine({ leaves: 4, hostsPerLeaf: 6, spines: 6, link: defaultLink, fabric: defaultLink, ecmp: 4 }), 3),
  leafSpine({ leaves: 4, hostsPerLeaf: 3, spines: 5, link: defaultLink, fabric: defaultLink, ecmp: 9 }),
  leafSpine({ leaves: 2, hostsPerLeaf: 1, spines: 8, link: defaultLink, fabric: defaultLink, ecmp: 'path' }),
  fatTree({ ports: 4, link: defaultLink, fabric: defaultLink, ecmp: 1 }),
  fatTree({ ports: 8, link: defaultLink, fabric: defaultLink, ecmp: 2 }),
];

for (const topology of topologies) {
  test(`routes of ${topology.name} use each link, and the last one belongs to the destination alone`, () => {
    const last = new Map<number, number>();
    const seen = new Set<number>();
    for (let source = 0; source < topology.hosts; source += 1) {
      for (let destination = 0; destination < topology.hosts; destination += 1) {
        if (source === destination) continue;
        for (let path = 0; path < 16; path += 1) {
          const route = routeOf(topology, source, destination, path);
          assert.ok([2, 4, 6].includes(route.length), String(route));
          for (const link of route) seen.add(link);
          const end = route.at(-1) as number;
          assert.equal(last.get(end) ?? destination, destination);
          last.set(end, destination);
        }
      }
    }
    assert.equal(seen.size, topology.links.length);
  });
}

for (const topology of topologies) {
  test(`on ${topology.name} a path keeps to its rail, and each host has links of its own on it`, () => {
    const owners = new Map<number, string>();
    for (let source = 0; source < topology.hosts; source += 1) {
      for (let rail = 0; rail < topology.rails; rail += 1) {
        for (const link of hostLinks(topology, source, rail)) {
          assert.equal(topology.railOf(link), rail);
          assert.ok(!owners.has(link), `link ${link} of ${owners.get(link)}`);
          owners.set(link, `host ${source}, rail ${rail}`);
        }
      }
      for (let path = 0; path < 16; path += 1) {
        const rail = path % topology.rails;
        const destination = (source + 1 + path) % topology.hosts;
        if (destination === source) continue;
        const route = routeOf(topology, source, destination, path);
        assert.equal(route[0], hostLinks(topology, source, rail)[0]);
        assert.equal(route.at(-1), hostLinks(topology, destination, rail)[1]);
        for (const link of route) assert.ok([rail, SHARED].includes(topology.railOf(link)));
      }
    }
  });
}

test('what changes on one rail leaves the others as they are', () => {
  const network = separateRails(starNetwork({ hosts: 3, link: defaultLink }), 3);
  const lossy = changeRail(network, 1, { loss: 0.5 });
  const changed = lossy.links.flatMap(({ loss }, link) => (loss > 0 ? [link] : []));
  assert.deepEqual(changed, railLinks(network, 1));
  assert.deepEqual(changed, [6, 7, 8, 9, 10, 11]);
});

test('a fat tree gives a pair in different pods as many routes as there are core switches', () => {
  const tree = fatTree({ ports: 8, link: defaultLink, fabric: defaultLink, ecmp: 5 });
  const routes = new Set<string>();
  for (let path = 0; path < 256; path += 1) routes.add(routeOf(tree, 3, 100, path).join(' '));
  assert.equal(routes.size, 16);
});

test('the hash spreads paths evenly', () => {
  const counts = Array.from({ length: 8 }, () => 0);
  for (let source = 0; source < 16; source += 1) {
    for (let path = 0; path < 64; path += 1) {
      const choice = ecmpHash(source, source + 1, path, 3) % 8;
      counts[choice] = (counts[choice] as number) + 1;
    }
  }
  for (const count of counts) assert.ok(count > 90 && count < 170, String(counts));
});
