// What the transport must reach on simulated networks: incast, permutation, loss, a dead path, several rails.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type LinkOptions, pathLinks, patternTopology, type TopologyName } from '#lib/programs/sim/topology.js';
import { type PatternName, type PatternOptions, runPattern } from '#lib/programs/sim/pattern-run.js';
import { usualSettings } from '#lib/programs/sim/simulation.js';

interface Goal extends Partial<Omit<PatternOptions, 'topology'>> {
  readonly pattern: PatternName;
  readonly network: TopologyName;
  readonly hosts: number;
  readonly rails?: number;
  readonly link?: Partial<LinkOptions>;
}

function optionsOf({ network, hosts, rails = 1, link = {}, ...more }: Goal): PatternOptions {
  const paths = more.paths ?? 8;

  const topology = { name: network, hosts, paths, rails, seed: 1, gigabitsPerSecond: 100, link: { delay: 1, ...link } };
  return {
    topology: patternTopology(topology),
    hostGigabitsPerSecond: 100,
    seed: 1,
    flows: 1,
    messages: 60,
    outstanding: 2,
    messageBytes: 1_000_000,
    paths,
    segmentBytes: 4096,
    load: 1,
    pollDelay: 2,
    rail: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: usualSettings(100, rails),
    until: 10_000_000,
    ...more,
  };
}

const pair = { pattern: 'pair', network: 'pair', hosts: 2 } as const;

/** The chance on each of the four links of a route that makes this chance altogether. */
function perLink(loss: number): number {
  return 1 - (1 - loss) ** (1 / 4);
}

/** The 99th percentile of messages on a fat tree of 128 hosts, offered at 80 % of their rate. Large packets: half of the events. */
function permutationP99(paths: number): number {
  const shape = { pattern: 'permutation', network: 'fat-tree', hosts: 128, paths, load: 0.8, messages: 6 } as const;
  const { completion } = runPattern(optionsOf({ ...shape, segmentBytes: 8928 }));
  return completion?.p99 ?? Number.NaN;
}

function goodput(goal: Goal): number {
  const { end, goodputGbps } = runPattern(optionsOf(goal));
  assert.equal(end, 'done');
  return goodputGbps;
}

test('an incast of 16 hosts ends within 1.2 times the ideal, without loss', () => {
  for (const messageBytes of [10_000, 1_000_000]) {
    const run = runPattern(
      optionsOf({ pattern: 'incast', network: 'star', hosts: 17, paths: 1, messages: 8, messageBytes }),
    );
    assert.equal(run.end, 'done');
    assert.equal(run.network.droppedFull, 0);
    assert.ok(run.microseconds <= 1.2 * run.theory.totalMicroseconds, `${run.microseconds} µs`);
    assert.ok(run.fairness > 0.99);
  }
});

test('an incast of 255 hosts with small messages ends within 1.2 times the ideal, without loss', () => {
  const shape = { pattern: 'incast', network: 'star', hosts: 256, paths: 1, messages: 16, messageBytes: 1000 } as const;
  const run = runPattern(optionsOf(shape));
  assert.equal(run.network.droppedFull, 0);
  assert.ok(run.microseconds <= 1.2 * run.theory.totalMicroseconds, `${run.microseconds} µs`);
});

test('with 64 paths the P99 of a permutation on a fat tree is at most 0.6 of that with one path, at 80 % load', () => {
  const [many, one] = [permutationP99(64), permutationP99(1)];
  assert.ok(many <= 0.6 * one, `${many} and ${one} µs`);
});

test('with 1 % loss at least 70 % of the goodput is left, with 5 % at least 40 %', () => {
  const lossless = goodput(pair);
  const some = goodput({ ...pair, link: { loss: perLink(0.01) } });
  assert.ok(some >= 0.7 * lossless, `${some} of ${lossless} Gb/s`);
  const much = goodput({ ...pair, link: { loss: perLink(0.05) } });
  assert.ok(much >= 0.4 * lossless, `${much} of ${lossless} Gb/s`);
});

test('small messages, of which each needs a control record, lose no more', () => {
  const small = { ...pair, messages: 4000, messageBytes: 1000, outstanding: 64 };
  const lossless = goodput(small);
  const some = goodput({ ...small, link: { loss: perLink(0.01) } });
  assert.ok(some >= 0.7 * lossless, `${some} of ${lossless} Gb/s`);
  const much = goodput({ ...small, link: { loss: perLink(0.05) } });
  assert.ok(much >= 0.4 * lossless, `${much} of ${lossless} Gb/s`);
});

test('corruption, duplication and reordering cost little', () => {
  const lossless = goodput(pair);
  const nic = { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: true, join: false };
  const settings = { ...usualSettings(100), transportChecksum: 'full' } as const;
  for (const link of [{ corrupt: 0.0025 }, { duplicate: 0.01 }, { reorder: 0.05, jitter: 20 }]) {
    const left = goodput({ ...pair, messages: 20, rail: nic, settings, link });
    assert.ok(left >= 0.7 * lossless, `${JSON.stringify(link)}: ${left} of ${lossless} Gb/s`);
  }
});

test('several rails carry what they can, whether each has one path or many', () => {
  for (const paths of [8, 64]) {
    const { end, microseconds, theory, railBytes } = runPattern(
      optionsOf({ ...pair, rails: 8, paths, outstanding: 8, settings: usualSettings(100, 8) }),
    );
    assert.equal(end, 'done');
    assert.ok(theory.totalMicroseconds >= 0.97 * microseconds, `${paths} paths: ${microseconds} µs`);
    const mean = railBytes.reduce((sum, bytes) => sum + bytes) / railBytes.length;
    assert.ok(Math.max(...railBytes) <= 1.03 * mean, `${paths} paths: ${railBytes.join(', ')} bytes`);
  }
});

test('where one of eight paths dies, 85 % of the goodput is back within 100 ms', () => {
  const options = optionsOf({ ...pair, hosts: 2, messages: 200, sampleEvery: 1000 });
  const faults = pathLinks(options.topology, 2, 8).map((link) => ({ link, at: 5000 }));
  const { samples, completed } = runPattern({ ...options, faults });
  assert.equal(completed, 200);
  const rates = samples.map((sample) => sample.goodputGbps[0] as number);
  const before = rates[3] as number;
  // Each sample is a millisecond.
  const after = rates.slice(6, -1);
  assert.ok(
    after.every((rate) => rate >= 0.85 * before),
    after.map((rate) => rate.toFixed(1)).join(' '),
  );
});
