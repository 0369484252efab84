// Simulated collectives: all messages come, none beats what the links allow, and bytes are those of the algorithms.
import assert from 'node:assert/strict';
import test from 'node:test';
import { seededRandom } from '#lib/core/seeded-random.js';
import { runCollective, type CollectiveRunResult } from '#lib/programs/sim/collective/collective-run.js';
import type { CollectiveSchedule } from '#lib/programs/sim/collective/collective-schedule.js';
import {
  halvingAllReduce,
  ringAllReduce,
  treeAllReduce,
  turnsAllToAll,
} from '#lib/programs/sim/collective/dense-schedules.js';
import { SparseSchedule } from '#lib/programs/sim/collective/sparse-schedule.js';
import { patternTopology, type TopologyName } from '#lib/programs/sim/pattern-topology.js';
import { usualSettings } from '#lib/programs/sim/usual-settings.js';

const MIB = 2 ** 20;

interface Where {
  readonly topology?: TopologyName;
  readonly rails?: number;
  readonly loss?: number;
  readonly queueBytes?: number;
}

function run(schedule: CollectiveSchedule, where: Where = {}): CollectiveRunResult {
  const { topology: name = 'leaf-spine', rails = 1, loss = 0, queueBytes = 1_000_000 } = where;
  const paths = 8;
  const link = { loss, queueBytes };
  const options = { name, hosts: schedule.hosts, paths, rails, seed: 1, gigabitsPerSecond: 100, link };
  return runCollective({
    schedule,
    topology: patternTopology(options),
    largestBytes: 2 * MIB,
    hostGigabitsPerSecond: 100,
    seed: 1,
    paths,
    segmentBytes: 4096,
    pollDelay: 2,
    nic: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: usualSettings(100, rails),
    until: 1e7,
  });
}

function sparse(workers: number, aggregators: number, { density = 0.02, fanIn = 1024 } = {}): SparseSchedule {
  const slots = { blockSize: 256, lanes: 32, slots: 8 };
  const shape = { workers, aggregators, fanIn, slots, blocks: 2048, blockBytes: 1024, density };
  return new SparseSchedule({ ...shape, random: seededRandom(3) });
}

const dense: readonly (readonly [name: string, schedule: () => CollectiveSchedule, sent: number, where: Where])[] = [
  ['ring on a fat tree', () => ringAllReduce(16, MIB), (2 * 15) / 16, { topology: 'fat-tree' }],
  ['ring on rails', () => ringAllReduce(8, MIB), (2 * 7) / 8, { topology: 'rail-optimised', rails: 4 }],
  ['ring of odd hosts', () => ringAllReduce(9, 1_000_003), (2 * 8) / 9, {}],
  ['halving and doubling', () => halvingAllReduce(16, MIB), (2 * 15) / 16, { topology: 'fat-tree' }],
  ['halving and doubling with loss', () => halvingAllReduce(8, MIB), (2 * 7) / 8, { loss: 0.001 }],
  ['binary tree', () => treeAllReduce(13, MIB, { fanIn: 2, pieceBytes: 65_536 }), 3, {}],
  ['all-to-all on a fat tree', () => turnsAllToAll(16, MIB, 4), 15 / 16, { topology: 'fat-tree' }],
  ['all-to-all on rails', () => turnsAllToAll(9, MIB, 64), 8 / 9, { topology: 'rail-optimised', rails: 2 }],
];

for (const [name, schedule, sent, where] of dense) {
  test(`${name}: every message comes, in no less than the bound`, () => {
    const made = schedule();
    const { end, arrived, messages, microseconds, bounds, mostSentBytes } = run(made, where);
    assert.deepEqual([end, arrived, messages], ['done', made.messages, made.messages]);
    const bytes = name.includes('odd') ? 1_000_003 : MIB;
    assert.ok(Math.abs(mostSentBytes / bytes - sent) < 0.001, `${mostSentBytes / bytes}`);
    const bound = Math.max(bounds.bytesMicroseconds, bounds.stepsMicroseconds);
    // A step waits for the clear-to-send and for two polls besides, and not all hosts are as near as the nearest two.
    assert.ok(microseconds >= bound && microseconds < 5 * bound, `${microseconds} µs, at least ${bound}`);
  });
}

test('a tree with more children than a byte counts hands a sum down once, when all have come', () => {
  const tree = treeAllReduce(300, 64, { fanIn: 1024, pieceBytes: 64 });
  const sent: (readonly [source: number, destination: number, tag: number])[] = [];
  const send = (source: number, destination: number, _bytes: number, tag: number): void => {
    sent.push([source, destination, tag]);
  };
  tree.begin(send);
  for (let at = 0; at < sent.length; at++) {
    const [source, destination, tag] = sent[at]!;
    if (source === 0) assert.ok(at >= 299, 'the root hands down before it has heard all');
    tree.arrived(source, destination, tag, send);
  }
  assert.equal(sent.length, tree.messages);
});

test('the same seed gives the same run', () => {
  const [one, other] = [run(ringAllReduce(8, MIB), { loss: 0.01 }), run(ringAllReduce(8, MIB), { loss: 0.01 })];
  assert.deepEqual(one, other);
  assert.ok(one.network.droppedLoss > 0);
});

test('halving and doubling refuses other numbers of hosts than powers of two', () => {
  assert.throws(() => halvingAllReduce(12, MIB), { code: 'WL_INVALID_ARGUMENT', message: /12/ });
});

test('workers of a sparse all-reduce send their blocks alone, and one aggregator answers all of them', () => {
  const schedule = sparse(12, 1);
  const { end, mostSentBytes, bounds, microseconds } = run(schedule, { topology: 'star', queueBytes: 100_000 });
  const { sumBlocks } = schedule.blocksMoved;
  const theory = 12 * sumBlocks * 1024;
  assert.equal(end, 'done');
  assert.ok(mostSentBytes >= theory && mostSentBytes < 1.1 * theory, `${mostSentBytes} against ${theory}`);
  assert.ok(microseconds >= bounds.bytesMicroseconds);
});

test('trees of aggregators divide what one aggregator takes and gives by the fan-in', () => {
  const [flat, tree] = [sparse(12, 4, { density: 0.3 }), sparse(12, 4, { density: 0.3, fanIn: 4 })];
  const where: Where = { topology: 'star', queueBytes: 100_000 };
  const [all, some] = [run(flat, where), run(tree, where)];
  assert.deepEqual([all.end, some.end], ['done', 'done']);
  assert.equal(flat.blocksMoved.sumBlocks, tree.blocksMoved.sumBlocks);
  // Trees begin with each aggregator in turn, so that in the mean one serves 12 workers and 3 aggregators, and not 12 of each.
  assert.ok(some.mostSentBytes < 1.5 * all.mostSentBytes, `${some.mostSentBytes} against ${all.mostSentBytes}`);
  assert.ok(tree.messages > flat.messages);
});
