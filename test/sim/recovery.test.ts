// Scenarios made by hand, one for each way in which a connection once got stuck or gave up without need.
import assert from 'node:assert/strict';
import test from 'node:test';
import { defaultLink, leafSpine, pathLinks, railLinks, separateRails, star } from '#lib/programs/sim/topology.js';
import type { MessageOperation, ScenarioOperation, Scenario } from '#lib/programs/sim/scenario.js';
import { runScenario } from '#lib/programs/sim/scenario-run.js';
import type { SimulatedHost } from '#lib/programs/sim/simulated-host.js';
import { Simulation } from '#lib/programs/sim/simulation.js';
import type { Region } from '#lib/transport/engine/region.js';
import { spreads } from '#lib/transport/lanes/lane-choice.js';

const link = { ...defaultLink, gigabitsPerSecond: 10 };
const place = { connection: 0, from: 0, flow: 0, at: 0 } as const;

function check(changes: Partial<Scenario> & { readonly operations: readonly ScenarioOperation[] }): void {
  const { problems } = runScenario({
    seed: 1,
    topology: star({ hosts: 2, link }),
    paths: 1,
    segmentBytes: 1024,
    rail: { burstSegments: 4, sendBufferBytes: 100_000, carryPayload: true, join: false },
    pollDelay: 1,
    settings: {},
    connections: [[0, 1]],
    faults: [],
    deaths: [],
    cancellations: [],
    closings: [],
    ...changes,
  });
  assert.deepEqual(problems, []);
}

function message(flow: number, bytes: number): MessageOperation {
  return { ...place, kind: 'message', flow, bytes, room: bytes + 100, receiveAt: 0 };
}

test('a signal that overtakes a lost write is done when it is added, and a flush behind it after that', () => {
  const operations: ScenarioOperation[] = [];
  for (let index = 0; index < 40; index += 1) {
    operations.push({ ...place, kind: 'write', bytes: 5000, badKey: false }, { ...place, kind: 'signal', add: 3 });
    if (index % 5 === 4) operations.push({ ...place, kind: 'flush' });
  }
  check({ topology: star({ hosts: 2, link: { ...link, loss: 0.05 } }), operations });
});

test('a send that is too large for a receive that waits fails at both ends, after its call has returned', () => {
  check({ operations: [{ ...place, kind: 'message', bytes: 10, room: 9, at: 500, receiveAt: 0 }] });
});

test('a connection that was idle for longer than the time to give up works', () => {
  const late = 25_000_000;
  check({
    operations: [
      { ...place, kind: 'read', bytes: 100, badKey: false, at: late },
      { ...place, kind: 'message', bytes: 100, room: 100, at: 3 * late, receiveAt: 2 * late },
    ],
  });
});

test('messages beyond what an engine may admit end, though later ones were granted first', () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    check({
      seed,
      topology: star({ hosts: 2, link: { ...link, loss: 0.02, reorder: 0.3, jitter: 30 } }),
      settings: { transportCtsBytes: 20_000, transportCtsChunkBytes: 8000 },
      operations: [message(0, 30_000), message(0, 60_000), message(0, 9000), message(1, 40_000), message(0, 25_000)],
    });
  }
});

test('a path that dies with all that is under way is left, whatever it was', () => {
  const topology = leafSpine({ leaves: 2, hostsPerLeaf: 1, spines: 2, link, fabric: link, ecmp: 'path' });
  for (let seed = 1; seed <= 20; seed += 1) {
    const faults = pathLinks(topology, seed % 2, 2).map((dead) => ({ link: dead, at: 5 }));
    for (const operation of [
      { ...place, kind: 'read', bytes: 200, badKey: false },
      { ...place, kind: 'write', bytes: 20_000, badKey: false },
      { ...place, kind: 'message', bytes: 3000, room: 3000, receiveAt: 20 },
      { ...place, kind: 'message', bytes: 3000, room: 3000, receiveAt: 0, at: 20 },
    ] satisfies ScenarioOperation[]) {
      check({ seed, topology, paths: 2, faults, operations: [operation] });
    }
  }
});

test('a rail that dies for ever before all its paths were tried is left', () => {
  const slow = { ...link, delay: 100 };
  const topology = separateRails(
    leafSpine({ leaves: 2, hostsPerLeaf: 1, spines: 4, link: slow, fabric: slow, ecmp: 'path' }),
    2,
  );
  for (let seed = 1; seed <= 40; seed += 1) {
    const faults = railLinks(topology, 0).map((dead) => ({ link: dead, at: 400 }));
    const operations = [message(0, 400_000), { ...message(1, 300_000), from: 1, at: 300, receiveAt: 500 } as const];
    // A window that is soon full of what went to the dead rail.
    const settings = { transportWindowBytes: 16_384, transportMinRtoUs: 400 };
    check({ seed, topology, paths: 3 + (seed % 4), settings, faults, operations });
  }
});

test('a peer that dies while records are still open does not keep an engine awake', () => {
  check({
    operations: [{ ...place, kind: 'message', bytes: 10, room: 9, at: 0, receiveAt: 0 }],
    deaths: [{ host: 0, at: 4 }],
  });
});

test('a peer that dies while segments of a request that has failed are under way does not keep an engine awake', () => {
  check({
    operations: [{ ...place, kind: 'write', bytes: 100, badKey: true }],
    deaths: [{ host: 1, at: 4 }],
  });
  check({
    operations: [{ ...place, kind: 'write', bytes: 100_000, badKey: false }],
    cancellations: [{ operation: 0, by: 'near', at: 10 }],
    deaths: [{ host: 1, at: 8 }],
  });
});

test('a signal comes after the writes of its flow, whichever engine carried them, and a flush after both', () => {
  const operations: ScenarioOperation[] = [];
  for (let index = 0; index < 6; index += 1) {
    const flow = index % 3;
    operations.push(
      { ...place, flow, kind: 'write', bytes: 150_000 + 100_001 * index, badKey: false },
      { ...place, flow, kind: 'write', bytes: 70, badKey: false },
      { ...place, flow, kind: 'signal', add: 3 },
      { ...place, flow, kind: 'flush' },
      { ...place, flow, kind: 'signal', add: 5 },
    );
  }
  const topology = separateRails(star({ hosts: 2, link: { ...link, loss: 0.02 } }), 4);
  for (const engines of [2, 4, 7]) {
    for (const transportSpread of spreads) {
      check({ topology, paths: 2, engines, settings: { transportSpread }, operations });
    }
  }
});

test('signals by the thousand, both ways at once, wait for the one that was lost, however many have come', () => {
  const operations: ScenarioOperation[] = [];
  for (let index = 0; index < 1500; index += 1) {
    for (const from of [0, 1] as const) operations.push({ ...place, from, flow: index % 2, kind: 'signal', add: 1 });
    if (index % 100 === 0) operations.push(message(2, 3000));
  }
  const topology = star({ hosts: 2, link: { ...link, loss: 0.02, reorder: 0.3, jitter: 300 } });
  for (const engines of [1, 2, 4]) check({ topology, paths: 4, engines, operations });
});

test('messages that are spread over engines meet their receives in order, also where some are withdrawn or too large', () => {
  const operations: ScenarioOperation[] = [];
  for (let index = 0; index < 12; index += 1) {
    const bytes = [200_000, 10, 0, 400_001][index % 4]!;
    const room = index === 8 ? bytes - 1 : bytes + index * 1000;
    operations.push({ ...place, kind: 'message', bytes, room, at: 3 * index, receiveAt: 40 });
  }
  operations.push({ ...place, flow: 9, kind: 'message', bytes: 300_000, room: 300_000, receiveAt: 0 });
  const cancellations = [
    { operation: 12, by: 'near', at: 60 },
    { operation: 12, by: 'far', at: 70 },
  ] as const;
  const topology = star({ hosts: 2, link: { ...link, loss: 0.01 } });
  for (const engines of [2, 3, 8]) {
    for (const transportSpread of spreads) {
      check({ topology, paths: 2, engines, settings: { transportSpread }, operations, cancellations });
    }
  }
});

test('a host that dies ends all lanes of its connections', () => {
  for (const transportSpread of spreads) {
    check({
      engines: 4,
      settings: { transportSpread },
      operations: [
        { ...place, kind: 'write', bytes: 2_000_000, badKey: false },
        { ...place, kind: 'signal', add: 1 },
        message(1, 500_000),
        { ...place, kind: 'flush' },
      ],
      deaths: [{ host: 1, at: 100 }],
    });
  }
});

test('what a dead sender was granted does not keep others waiting until it is given up', () => {
  const simulation = new Simulation({
    seed: 1,
    topology: star({ hosts: 3, link }),
    segmentBytes: 1024,
    rail: { burstSegments: 4, sendBufferBytes: 100_000, carryPayload: true, join: false },
    pollDelay: 1,
    paths: 1,
    settings: { transportCtsBytes: 65_536, transportCtsChunkBytes: 8192 },
  });
  const ends = [simulation.connect(0, 2), simulation.connect(1, 2)] as const;
  const regions = simulation.hosts.map((host) => host.register({ bytes: new Uint8Array(1_000_000) }));
  const post = (sender: 0 | 1, bytes: number): number => {
    const [near, far] = ends[sender];
    near.postSend({ region: regions[sender] as Region, offset: 0, bytes });
    const receive = far.postReceive({ region: regions[2] as Region, offset: 0, bytes });
    simulation.wake(sender);
    simulation.wake(2);
    return receive;
  };
  const { engine } = (simulation.hosts[2] as SimulatedHost).engines[0]!;
  const errors: string[] = [];
  const done = new Set<number>();
  (simulation.hosts[2] as SimulatedHost).onEnd = ({ request, error }) => {
    if (error === undefined) done.add(request);
    else errors.push(error.code);
  };
  const first = post(0, 1_000_000);
  simulation.run({ until: 100, events: 100_000, done: () => false });
  assert.ok(engine.admission.claimedBytes > 57_344);
  simulation.kill(0);
  const second = post(1, 300_000);
  simulation.run({ until: 100_000, events: 100_000, done: () => done.has(second) });
  assert.ok(done.has(second) && !done.has(first), `${simulation.now} µs`);
  simulation.run({ until: 20_000_000, events: 100_000, done: () => false });
  assert.deepEqual(errors, ['WL_PEER_LOST']);
  const { claimedBytes, unclaimedBytes } = engine.admission;
  assert.deepEqual([claimedBytes, unclaimedBytes], [0, 0]);
});
