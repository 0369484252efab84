// Traffic patterns: who sends to whom, what theory says, and that the transport comes near it.
import assert from 'node:assert/strict';
import test from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import { defaultLink } from '#lib/programs/sim/link.js';
import { jainFairness } from '#lib/programs/sim/pattern-result.js';
import { type PatternOptions, runPattern } from '#lib/programs/sim/pattern-run.js';
import { patternTopology, usualTopology } from '#lib/programs/sim/pattern-topology.js';
import { rails } from '#lib/programs/sim/rails.js';
import { oneWayDelay, theory, wireBytes } from '#lib/programs/sim/theory.js';
import { pathLinks } from '#lib/programs/sim/topology.js';
import { makeTraffic, type PatternName } from '#lib/programs/sim/traffic.js';
import { usualSettings } from '#lib/programs/sim/usual-settings.js';
import { simReport } from '#lib/programs/report/sim-report.js';
import { samplePlot } from '#lib/programs/report/sample-plot.js';

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
  const topology = rails({ hosts: 3, rails: 1, link: { ...defaultLink, gigabitsPerSecond: 8, delay: 5 } });
  // Two links of 5 µs; 934 + 66 bytes take 1 µs on each.
  assert.equal(oneWayDelay(topology, { source: 0, destination: 2 }, 934), 12);
  const shape = { topology, segmentBytes: 1064, messageBytes: 4000, hostGigabitsPerSecond: 8 };
  const ideal = theory({ ...shape, pattern: 'incast', messages: 10 });
  const wire = 4 * 1130;
  assert.ok(Math.abs(ideal.goodputGbps - 8 * (4000 / wire)) < 1e-9);
  assert.ok(Math.abs(ideal.fairShareGbps - ideal.goodputGbps / 2) < 1e-9);
  // The first packet crosses two links, three more follow it.
  assert.ok(Math.abs(ideal.messageMicroseconds - (10 + 2 * 1.13 + 3 * 1.13)) < 1e-9);
  assert.ok(Math.abs(ideal.totalMicroseconds - (ideal.messageMicroseconds + 9 * 4.52)) < 1e-9);
});

test('fairness is 1 for equal rates and 1/n if one has all', () => {
  assert.equal(jainFairness([2, 2, 2, 2]), 1);
  assert.equal(jainFairness([4, 0, 0, 0]), 0.25);
});

function options(pattern: PatternName, hosts: number, more: Partial<PatternOptions> = {}): PatternOptions {
  const paths = more.paths ?? 4;
  return {
    pattern,
    topology: patternTopology({
      name: usualTopology[pattern],
      hosts,
      paths,
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
    nic: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: usualSettings(100),
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

test('the report and the picture show a run', async () => {
  const result = runPattern(options('incast', 4, { paths: 1, sampleEvery: 10 }));
  assert.ok(result.samples.length > 3);
  const description = {
    pattern: 'incast',
    network: 'star of 4 hosts',
    gigabitsPerSecond: 100,
    paths: 1,
    congestion: 'swift',
    load: 1,
    loss: 0,
    flows: 1,
    messages: 4,
    messageBytes: 300_000,
    seed: 1,
  };
  const text = simReport(description, result);
  assert.match(text, /incast on star of 4 hosts, 100 Gbps per host; 1 path, congestion control swift/);
  assert.match(text, /All 12 messages arrived/);
  const picture = await samplePlot(description, result);
  assert.match(picture, /^<svg xmlns="http:\/\/www\.w3\.org\/2000\/svg"/);
  assert.match(picture, /goodput of each sender/);
  assert.ok(picture.split('<path').length > 3);
});
