// Traffic patterns: who sends to whom, what theory says, and that the transport comes near it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import {
  changeRail,
  defaultLink,
  pathLinks,
  patternTopology,
  separateRails,
  star,
} from '#lib/programs/sim/topology.js';
import {
  jainFairness,
  makeTraffic,
  oneWayDelay,
  type PatternName,
  type PatternOptions,
  runPattern,
  theory,
  usualTopology,
  wireBytes,
} from '#lib/programs/sim/pattern-run.js';
import { usualSettings } from '#lib/programs/sim/simulation.js';
import { simView } from '#lib/programs/cli/sim-command.js';
import { viewPage, viewText } from '#lib/programs/report/view.js';

const all = { messages: 3, messagesPerMicrosecond: Number.POSITIVE_INFINITY } as const;

test('an incast has all hosts send to one', () => {
  const { flows } = makeTraffic({ ...all, pattern: 'incast', hosts: 5, flows: 2, random: seededRandom(1) });
  assert.equal(flows.length, 8);
  assert.ok(flows.every(({ source, destination }) => source < 4 && destination === 4));
});

test('a permutation has every host send to another and receive from another', () => {
  for (let seed = 0; seed < 20; seed += 1) {
    const { flows } = makeTraffic({ ...all, pattern: 'permutation', hosts: 16, flows: 1, random: seededRandom(seed) });
    assert.ok(flows.every(({ source, destination }) => source !== destination));
    assert.equal(new Set(flows.map(({ destination }) => destination)).size, 16);
  }
});

test('in an all-to-all every host sends to every other one, and in each turn to one', () => {
  const { flows } = makeTraffic({ ...all, pattern: 'all-to-all', hosts: 7, flows: 2, random: seededRandom(1) });
  const pairs = flows.map(({ source, destination }) => `${source} ${destination}`);
  assert.equal(new Set(pairs).size, 42);
  assert.equal(flows.length, 84);
  assert.ok(flows.every(({ source, destination }) => source !== destination));
  for (let turn = 0; turn < 6; turn += 1) {
    const turnFlows = flows.slice(14 * turn, 14 * (turn + 1));
    assert.equal(new Set(turnFlows.map(({ source }) => source)).size, 7);
    assert.equal(new Set(turnFlows.map(({ destination }) => destination)).size, 7);
  }
});

test('an all-to-all of more hosts than memory has room for is refused', () => {
  const many = { ...all, pattern: 'all-to-all', hosts: 129, flows: 1, random: seededRandom(1) } as const;
  assert.throws(() => makeTraffic(many), { code: 'WL_INVALID_ARGUMENT', message: /at most 128, got 129/ });
});

test('messages are offered at random times of the given rate', () => {
  const random = seededRandom(2);
  const rate = { messages: 5000, messagesPerMicrosecond: 0.02 };
  const { offered } = makeTraffic({ ...rate, pattern: 'pair', hosts: 2, flows: 1, random });
  assert.ok(Math.abs((offered.at(-1) as number) / 250_000 - 1) < 0.05);
  assert.ok(offered.every((time, index) => index === 0 || time >= (offered[index - 1] as number)));
});

test('theory: bytes on the wire, delay of a route, ideal times', () => {
  // Segments of 1064 bytes carry 1000; each costs 64 + 66 bytes more.
  assert.equal(wireBytes(2500, 1064), 2500 + 3 * 130);
  assert.equal(wireBytes(0, 1064), 130);
  const topology = star({ hosts: 3, link: { ...defaultLink, gigabitsPerSecond: 8, delay: 5 } });
  // Two links of 5 µs; 934 + 66 bytes take 1 µs on each.
  assert.equal(oneWayDelay(topology, { source: 0, destination: 2 }, 934), 12);
  const shape = { topology, segmentBytes: 1064, messageBytes: 4000, paths: 1, hostGigabitsPerSecond: 8 };
  const ideal = theory({ ...shape, pattern: 'incast', messages: 10 });
  const wire = 4 * 1130;
  assert.ok(Math.abs(ideal.goodputGbps - 8 * (4000 / wire)) < 1e-9);
  assert.ok(Math.abs(ideal.fairShareGbps - ideal.goodputGbps / 2) < 1e-9);
  // The first packet crosses two links, three more follow it.
  assert.ok(Math.abs(ideal.messageMicroseconds - (10 + 2 * 1.13 + 3 * 1.13)) < 1e-9);
  assert.ok(Math.abs(ideal.totalMicroseconds - (ideal.messageMicroseconds + 9 * 4.52)) < 1e-9);
});

test('theory: rails carry a message side by side, and a dead one delays what is left', () => {
  const link = { ...defaultLink, gigabitsPerSecond: 2, delay: 5 };
  const topology = separateRails(star({ hosts: 3, link }), 4);
  const shape = { topology, segmentBytes: 1064, messageBytes: 8000, hostGigabitsPerSecond: 8, messages: 10 };
  const pair = { ...shape, pattern: 'pair', paths: 8 } as const;
  const ideal = theory(pair);
  assert.ok(Math.abs(ideal.goodputGbps - 8 * (1000 / 1130)) < 1e-9);
  // Each rail carries two of the eight packets, at 250 bytes per microsecond.
  assert.ok(Math.abs(ideal.messageMicroseconds - (10 + 3 * 4.52)) < 1e-9);
  const perMessage = (8 * 1130) / 1000;
  assert.ok(Math.abs(ideal.totalMicroseconds - (ideal.messageMicroseconds + 9 * perMessage)) < 1e-9);
  // With three paths one rail is idle.
  assert.ok(Math.abs(theory({ ...pair, paths: 3 }).goodputGbps / ideal.goodputGbps - 0.75) < 1e-9);
  const total = ideal.totalMicroseconds;
  const late = { from: total + 1, to: Number.POSITIVE_INFINITY };
  assert.equal(theory({ ...pair, outage: late }).totalMicroseconds, total);
  const whole = { from: 0, to: Number.POSITIVE_INFINITY };
  assert.ok(Math.abs(theory({ ...pair, outage: whole }).totalMicroseconds - total / 0.75) < 1e-9);
  const short = { from: 10, to: 18 };
  assert.ok(Math.abs(theory({ ...pair, outage: short }).totalMicroseconds - (total + 2)) < 1e-9);
  const single = theory({ ...pair, paths: 1, outage: short });
  assert.ok(Math.abs(single.totalMicroseconds - theory({ ...pair, paths: 1 }).totalMicroseconds - 8) < 1e-9);
  assert.equal(theory({ ...pair, paths: 1, outage: whole }).totalMicroseconds, Number.POSITIVE_INFINITY);
});

test('fairness is 1 for equal rates and 1/n if one has all', () => {
  assert.equal(jainFairness([2, 2, 2, 2]), 1);
  assert.equal(jainFairness([4, 0, 0, 0]), 0.25);
});

function options(
  pattern: PatternName,
  hosts: number,
  { rails = 1, ...more }: Partial<PatternOptions> & { readonly rails?: number } = {},
): PatternOptions {
  const paths = more.paths ?? 4;
  return {
    pattern,
    topology: patternTopology({
      name: usualTopology[pattern],
      hosts,
      paths,
      rails,
      seed: 1,
      gigabitsPerSecond: 100,
      link: { delay: 1 },
    }),
    hostGigabitsPerSecond: 100,
    seed: 1,
    flows: 1,
    messages: 4,
    outstanding: 2,
    messageBytes: 300_000,
    paths,
    segmentBytes: 4096,
    load: 1,
    pollDelay: 2,
    rail: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: usualSettings(100, rails),
    until: 1_000_000,
    ...more,
  };
}

test('a pair comes near the rate of its link', () => {
  const { end, completed, goodputGbps, theory: ideal, network } = runPattern(options('pair', 2));
  assert.equal(end, 'done');
  assert.equal(completed, 4);
  assert.equal(network.droppedFull, 0);
  assert.ok(goodputGbps > 0.6 * ideal.goodputGbps, `${goodputGbps} of ${ideal.goodputGbps} Gb/s`);
});

test('an incast ends without loss, and evenly', () => {
  const result = runPattern(options('incast', 9, { paths: 1 }));
  assert.equal(result.end, 'done');
  assert.equal(result.network.droppedFull, 0);
  assert.ok(result.fairness > 0.9, String(result.fairness));
  assert.ok(result.microseconds < 1.3 * result.theory.totalMicroseconds, `${result.microseconds} µs`);
});

test('a permutation ends, and the same seed gives the same run', () => {
  const once = runPattern(options('permutation', 16, { load: 0.5 }));
  assert.equal(once.completed, 64);
  assert.deepEqual(runPattern(options('permutation', 16, { load: 0.5 })), once);
});

test('a path that dies takes nothing with it', () => {
  const shape = options('pair', 2, { messages: 20 });
  const faults = pathLinks(shape.topology, 2, 4).map((link) => ({ link, at: 50 }));
  assert.equal(faults.length, 4);
  const result = runPattern({ ...shape, faults });
  assert.equal(result.completed, 20);
  assert.ok(result.network.droppedDown > 0);
});

test('rails share the load of every pattern', () => {
  for (const [pattern, hosts] of [
    ['pair', 2],
    ['incast', 5],
    ['permutation', 8],
    ['all-to-all', 6],
  ] as const) {
    const result = runPattern(options(pattern, hosts, { rails: 4, paths: 8 }));
    assert.equal(result.end, 'done');
    assert.equal(result.completed, result.messages);
    const bytes = result.railBytes.reduce((sum, each) => sum + each, 0);
    for (const each of result.railBytes) assert.ok(each > 0.15 * bytes, `${pattern}: ${each} of ${bytes}`);
  }
});

test('networks of every kind carry a permutation over several rails', () => {
  for (const name of ['star', 'leaf-spine', 'rail-optimised', 'fat-tree'] as const) {
    const shape = { name, hosts: 16, paths: 8, rails: 4, seed: 1, gigabitsPerSecond: 100, link: { delay: 1 } };
    const result = runPattern({ ...options('permutation', 16, { paths: 8 }), topology: patternTopology(shape) });
    assert.equal(result.completed, 64, name);
    assert.equal(result.railBytes.length, 4);
  }
});

test('several engines of a host share its rails', () => {
  for (const transportSpread of ['turn', 'split'] as const) {
    const shape = options('pair', 2, { rails: 4, paths: 4, engines: 4, messages: 24, outstanding: 8 });
    const result = runPattern({ ...shape, settings: { ...shape.settings, transportSpread } });
    assert.equal(result.end, 'done');
    assert.ok(result.goodputGbps > 0.5 * result.theory.goodputGbps, `${transportSpread}: ${result.goodputGbps} Gb/s`);
    assert.deepEqual(runPattern({ ...shape, settings: { ...shape.settings, transportSpread } }), result);
  }
});

test('several engines of a receiver give credits for its link once, not once each', () => {
  const settings = { ...usualSettings(100), transportCongestion: 'eqds', transportCtsBytes: 1e9 } as const;
  const dropped = [1, 4].map((engines) => {
    const shape = options('incast', 9, { engines, paths: 1, messages: 24, outstanding: 8, settings });
    const { end, network } = runPattern(shape);
    assert.equal(end, 'done');
    return network.droppedFull / network.sent;
  });
  // Each lane may send a little before it has credits.
  assert.ok(dropped[1]! < 0.1, `${dropped.join(' and ')} of the packets were dropped`);
});

test('loss on one rail is the loss of that rail alone', () => {
  const shape = options('pair', 2, { rails: 4, paths: 8, messages: 20 });
  const clean = runPattern(shape);
  const lossy = runPattern({ ...shape, topology: changeRail(shape.topology, 2, { loss: 0.05 }) });
  assert.equal(clean.network.droppedLoss, 0);
  assert.ok(lossy.network.droppedLoss > 0);
  assert.equal(lossy.completed, 20);
  const [first, , third] = lossy.railBytes as [number, number, number, number];
  assert.ok(third < first, 'lossy paths get less');
});

test('a rail that dies leaves the others their share, and comes back', () => {
  const link = { rails: 4, paths: 8, messages: 1200, messageBytes: 1_000_000, outstanding: 8 };
  const outage = { rail: 1, from: 20_000, to: 220_000 };
  const gigabitsPerSecond = 20;
  const topology = patternTopology({
    name: 'pair',
    hosts: 2,
    paths: 8,
    rails: 4,
    seed: 1,
    gigabitsPerSecond,
    link: {},
  });
  const shape = options('pair', 2, { ...link, segmentBytes: 8928, hostGigabitsPerSecond: gigabitsPerSecond });
  const result = runPattern({ ...shape, topology, settings: usualSettings(gigabitsPerSecond, 4), outage });
  assert.equal(result.end, 'done');
  const { before = 0, during = 0, after = 0, worst = 0 } = result.outage ?? {};
  assert.ok(before > 0.9 * result.theory.goodputGbps, `${before} of ${result.theory.goodputGbps} Gb/s before`);
  assert.ok(
    during > 0.85 * 0.75 * before && during < 0.76 * result.theory.goodputGbps,
    `${during} Gb/s while it is dead`,
  );
  assert.ok(after > 0.9 * before, `${after} Gb/s afterwards`);
  assert.ok(worst <= during);
  assert.match(viewText(simView({ ...aPair, rails: 4 }, result)), /rail 1 dead from 20\.0 ms to 220\.0 ms: goodput \d/);
});

const aPair = {
  pattern: 'pair',
  network: 'a pair',
  gigabitsPerSecond: 20,
  engines: 1,
  paths: 8,
  congestion: 'swift',
  load: 1,
  loss: 0,
  flows: 1,
  messages: 1200,
  messageBytes: 1_000_000,
  seed: 1,
};

test('the report and its page show a run', () => {
  const result = runPattern(options('incast', 4, { paths: 1, sampleEvery: 10 }));
  assert.ok(result.samples.length > 3);
  const description = {
    pattern: 'incast',
    network: 'star of 4 hosts',
    gigabitsPerSecond: 100,
    rails: 1,
    engines: 1,
    paths: 1,
    congestion: 'swift',
    load: 1,
    loss: 0,
    flows: 1,
    messages: 4,
    messageBytes: 300_000,
    seed: 1,
  };
  const text = viewText(simView(description, result));
  assert.match(text, /incast on star of 4 hosts, 100 Gbps per host; 1 path, congestion control swift/);
  assert.match(text, /All 12 messages arrived/);
  const { sections } = viewPage(simView(description, result));
  assert.deepEqual(
    sections.map(({ title }) => title),
    [
      'Against theory',
      'Goodput over time',
      'Paths over time',
      'Windows over time',
      'Round trips over time',
      'Longest queue over time',
    ],
  );
  const paths = sections[2]!.chart;
  assert.ok(
    paths?.kind === 'lines' && paths.lines.length === 1 && paths.lines[0]!.points.length === result.samples.length,
  );
});
