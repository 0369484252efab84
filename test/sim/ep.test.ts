// Expert parallelism across simulated hosts: who sends how much to whom, in which order, and how near that comes to the links.
import assert from 'node:assert/strict';
import test from 'node:test';
import { simEpPage } from '#lib/programs/report/html/pages/sim-ep-page.js';
import { simEpReport } from '#lib/programs/report/sim-ep-report.js';
import { epNetwork, rankLinks } from '#lib/programs/sim/ep/ep-network.js';
import type { EpOptions, EpProtocol, EpShape } from '#lib/programs/sim/ep/ep-options.js';
import { EpPlan, epPhases } from '#lib/programs/sim/ep/ep-plan.js';
import { runEp } from '#lib/programs/sim/ep/ep-run.js';
import { countTraffic } from '#lib/programs/sim/ep/ep-traffic.js';
import { readRecordedChoices } from '#lib/programs/sim/ep/recorded-choices.js';
import { makeRouter, type Routing } from '#lib/programs/sim/ep/routing.js';
import { chunkSize, ServeOrder } from '#lib/programs/sim/ep/serve-order.js';
import { routeOf } from '#lib/programs/sim/topology.js';
import { usualSettings } from '#lib/programs/sim/usual-settings.js';

interface Case extends Partial<Omit<EpOptions, 'shape' | 'protocol' | 'topology'>> {
  readonly shape?: Partial<EpShape>;
  readonly protocol?: Partial<EpProtocol>;
  readonly loss?: number;
  readonly linkFactor?: number;
  readonly queueBytes?: number;
}

function optionsOf({ shape, protocol, loss = 0, linkFactor = 1, queueBytes = 1_000_000, ...more }: Case): EpOptions {
  const whole = { hosts: 4, ranksPerHost: 2, tokens: 64, hidden: 2048, topk: 4, experts: 32, ...shape };
  const simulatedRanks = more.simulatedRanks ?? whole.ranksPerHost;
  const slowHost = more.slowHost === undefined ? {} : { slowHost: { host: more.slowHost.host, linkFactor } };
  return {
    shape: { dtype: 'bf16', ...whole },
    protocol: {
      rows: 'per-host',
      order: 'rotated',
      chunkBytes: 65_536,
      outstandingBytes: 1_048_576,
      rowsPerWrite: 1,
      ...protocol,
    },
    routing: { name: 'uniform' },
    topology: epNetwork({
      name: 'star',
      hosts: whole.hosts,
      ranks: simulatedRanks,
      rails: 1,
      paths: 4,
      seed: 1,
      gigabitsPerSecond: 100,
      link: { delay: 1, loss, queueBytes },
      ...slowHost,
    }),
    simulatedRanks,
    paths: 4,
    engines: 1,
    segmentBytes: 4096,
    pollDelay: 2,
    nic: { burstSegments: 16, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: usualSettings(100),
    seed: 1,
    skew: 0,
    localRate: 100_000,
    barrier: 2,
    until: 1_000_000,
    ...more,
  };
}

test('chunks go to hosts in turn, from the next host on, and no more are under way than may be', () => {
  const serve = new ServeOrder({ rule: { order: 'rotated', perHost: 1 }, own: 1, chunks: [2, 0, 1, 3] });
  assert.deepEqual([serve.next(), serve.next(), serve.next(), serve.next()], [2, 3, 0, -1]);
  serve.arrived(3);
  serve.arrived(0);
  assert.deepEqual([serve.next(), serve.next(), serve.next()], [3, 0, -1]);
  for (const host of [2, 3, 0]) serve.arrived(host);
  assert.ok(!serve.isDone);
  assert.equal(serve.next(), 3);
  serve.arrived(3);
  assert.ok(serve.isDone);
  const all = { order: 'hosts', perHost: Number.POSITIVE_INFINITY } as const;
  const free = new ServeOrder({ rule: all, own: 1, chunks: [2, 0, 1] });
  assert.deepEqual([free.next(), free.next(), free.next(), free.next()], [0, 2, 0, -1]);
});

test('chunks are as long as the peers of a rank together may have under way, at least a row', () => {
  const rule = { rowBytes: 10_000, chunkBytes: 100_000, outstandingBytes: 400_000 };
  assert.deepEqual(chunkSize({ ...rule, hosts: 2 }), { rows: 10, perHost: 4 });
  assert.deepEqual(chunkSize({ ...rule, hosts: 5 }), { rows: 5, perHost: 2 });
  assert.deepEqual(chunkSize({ ...rule, hosts: 41 }), { rows: 1, perHost: 1 });
  assert.deepEqual(chunkSize({ ...rule, hosts: 128 }), { rows: 1, perHost: 1 });
  const unbounded = { ...rule, outstandingBytes: Number.POSITIVE_INFINITY };
  assert.deepEqual(chunkSize({ ...unbounded, hosts: 128 }), { rows: 10, perHost: Number.POSITIVE_INFINITY });
});

test('every routing chooses distinct experts, and as often as it says', () => {
  const [experts, topk, tokens] = [64, 8, 2000];
  const counts = (routing: Routing): number[] => {
    const route = makeRouter({ routing, experts, topk, seed: 3 });
    const chosen = new Int32Array(topk);
    const found = Array.from({ length: experts }, () => 0);
    for (let token = 0; token < tokens; token += 1) {
      route(0, token, chosen);
      assert.equal(new Set(chosen).size, topk);
      for (const expert of chosen) found[expert] = found[expert]! + 1;
    }
    return found;
  };
  const mean = (tokens * topk) / experts;
  const even = counts({ name: 'uniform' });
  assert.ok(Math.max(...even) < 1.3 * mean && Math.min(...even) > 0.7 * mean);
  const hot = counts({ name: 'hot', share: 1 });
  assert.equal(hot[0], tokens);
  const zipf = counts({ name: 'zipf', exponent: 1 });
  assert.ok(Math.max(...zipf) > 4 * mean);
  assert.ok(zipf.every((count) => count > 0));
});

test('recorded choices follow on each other and keep their weight', async () => {
  const choices = await readRecordedChoices('examples/data/qwen3-moe-block.safetensors');
  assert.deepEqual([choices.tokens, choices.topk, choices.experts], [1536, 4, 32]);
  const route = makeRouter({ routing: { name: 'recorded', choices }, experts: 64, topk: 4, seed: 1 });
  const chosen = new Int32Array(4);
  for (let token = 0; token < 2000; token += 1) {
    route(0, token, chosen);
    const from = (token % 1536) * 4;
    assert.deepEqual(
      [...chosen].map((expert) => expert >> 1),
      [...choices.chosen.subarray(from, from + 4)],
    );
  }
});

test('traffic: a row per token and host, places per rank, and what goes there comes back', () => {
  const options = optionsOf({ shape: { tokens: 500 } });
  const traffic = countTraffic(options);
  const { rows, places, choices } = traffic;
  assert.equal(
    choices.reduce((sum, count) => sum + count, 0),
    8 * 500 * 4,
  );
  assert.ok(rows.every((count, at) => count <= places[at]! && places[at]! <= choices[at]!));
  // 8 of 32 experts are on a host: of 4 choices, none is with a probability of 0.2955.
  const mean = rows.reduce((sum, count) => sum + count, 0) / rows.length;
  assert.ok(Math.abs(mean - 500 * 0.7045) < 10, String(mean));
  const plan = new EpPlan(options, traffic);
  for (let rank = 0; rank < 8; rank += 1) {
    for (let host = 0; host < 4; host += 1) {
      const back = plan.rows('combine', plan.peer(rank, host), Math.floor(rank / 2));
      assert.equal(back, plan.rows('dispatch', rank, host));
    }
  }
  const sent = (phase: (typeof epPhases)[number]): number =>
    Array.from({ length: 8 }, (_, rank) => plan.wireBytesFrom(phase, rank)).reduce((sum, bytes) => sum + bytes, 0);
  const received = Array.from({ length: 8 }, (_, rank) => plan.wireBytesTo('dispatch', rank));
  assert.equal(
    sent('dispatch'),
    received.reduce((sum, bytes) => sum + bytes, 0),
  );
  assert.ok(sent('dispatch') > sent('combine'), 'metadata go only there');
});

test('each rank has a network with its peers on other hosts', () => {
  const shape = { hosts: 4, ranks: 3, rails: 2, paths: 4, seed: 1, gigabitsPerSecond: 100, link: {} } as const;
  for (const name of ['star', 'rail-optimised'] as const) {
    const network = epNetwork({ ...shape, name });
    assert.equal(network.hosts, 12);
    const used = Array.from({ length: 12 }, (_, rank) => rankLinks(network, rank, 3));
    assert.equal(new Set(used.flatMap(({ up, down }) => [...up, ...down])).size, 12 * 4);
    for (let path = 0; path < 4; path += 1) {
      const links = routeOf(network, 1, 10, path);
      assert.ok(used[1]!.up.includes(links[0]!) && used[10]!.down.includes(links.at(-1)!));
    }
  }
  const slow = epNetwork({ ...shape, name: 'star', slowHost: { host: 2, linkFactor: 0.5 } });
  assert.equal(slow.links.filter(({ gigabitsPerSecond }) => gigabitsPerSecond === 25).length, 3 * 4);
});

test('a dispatch and a combine come near what the links allow, without loss, the same each time', () => {
  const options = optionsOf({
    shape: { hosts: 8, tokens: 128, hidden: 7168, topk: 8, experts: 64 },
    simulatedRanks: 1,
  });
  const result = runEp(options);
  assert.equal(result.end, 'done');
  assert.equal(result.network.droppedFull, 0);
  for (const phase of epPhases) {
    const { rows, bounds, meeting } = result[phase];
    assert.ok(rows >= bounds.rows - 0.01 && rows <= 1.15 * bounds.rows, `${phase}: ${rows} of ${bounds.rows} µs`);
    assert.ok(meeting >= bounds.meeting - 0.01, `${phase}: met after ${meeting}, at least ${bounds.meeting} µs`);
  }
  assert.deepEqual(runEp(options), result);
});

test('between two hosts sums of the own host keep nothing from the network', () => {
  const shape = { hosts: 2, tokens: 256, hidden: 7168, topk: 8, experts: 64 };
  const { combine } = runEp(optionsOf({ shape, simulatedRanks: 1 }));
  assert.ok(combine.rows <= 1.1 * combine.bounds.rows, `${combine.rows} of ${combine.bounds.rows} µs`);
});

test('all bytes arrive: those of the plan pass the links, whatever the rule', () => {
  for (const rows of ['per-host', 'per-expert'] as const) {
    const options = optionsOf({ protocol: { rows }, shape: { dtype: 'fp8' } });
    const result = runEp(options);
    const plan = new EpPlan(options, countTraffic(options));
    assert.equal(result.end, 'done');
    for (const { host, rank, bytes } of result.dispatch.incast) {
      const planned = plan.wireBytesTo('dispatch', 2 * host + rank);
      // Acks, records and their signals come on top.
      assert.ok(bytes > planned && bytes < 1.25 * planned, `${bytes} of ${planned}`);
    }
  }
});

test('one hot expert: the time is that of its host, and its queue stays short', () => {
  const shape = { hosts: 8, tokens: 128, hidden: 4096, topk: 4, experts: 64 };
  const options = optionsOf({ shape, routing: { name: 'hot', share: 1 }, simulatedRanks: 1 });
  const { end, network, dispatch } = runEp(options);
  assert.equal(end, 'done');
  assert.equal(network.droppedFull, 0);
  assert.equal(dispatch.incast[0]?.host, 0);
  assert.ok(dispatch.rows <= 1.15 * dispatch.bounds.rows, `${dispatch.rows} of ${dispatch.bounds.rows} µs`);
  const unbounded = { outstandingBytes: Number.POSITIVE_INFINITY, chunkBytes: 262_144 };
  const free = runEp({ ...options, protocol: { ...options.protocol, ...unbounded } });
  const queueOf = (incast: typeof dispatch.incast): number => Math.max(...incast.map(({ queueBytes }) => queueBytes));
  assert.ok(queueOf(dispatch.incast) < queueOf(free.dispatch.incast));
});

test('loss, late ranks, a slow host, few bytes under way: everything ends', () => {
  const lossy = runEp(optionsOf({ loss: 0.01 }));
  assert.equal(lossy.end, 'done');
  assert.ok(lossy.network.droppedLoss > 0);
  const late = runEp(optionsOf({ skew: 200 }));
  assert.equal(late.end, 'done');
  assert.ok(late.dispatch.meeting > 100);
  const even = runEp(optionsOf({}));
  const slowLinks = runEp(optionsOf({ slowHost: { host: 1, localFactor: 1 }, linkFactor: 0.25 }));
  assert.ok(slowLinks.dispatch.total > 2 * even.dispatch.total);
  assert.ok(slowLinks.dispatch.bounds.rows > 3 * even.dispatch.bounds.rows);
  const slowMemory = runEp(optionsOf({ slowHost: { host: 1, localFactor: 0.001 } }));
  assert.ok(slowMemory.dispatch.tail > even.dispatch.tail);
  assert.ok(slowMemory.combine.total > 2 * even.combine.total);
  assert.equal(runEp(optionsOf({ protocol: { outstandingBytes: 1 } })).end, 'done');
});

test('the report and its page show a run', () => {
  const options = optionsOf({ sampleEvery: 5 });
  const result = runEp(options);
  const description = {
    shape: options.shape,
    protocol: options.protocol,
    routing: 'uniform',
    simulatedRanks: 2,
    network: options.topology.name,
    gigabitsPerSecond: 100,
    rails: 1,
    engines: 1,
    paths: 4,
    congestion: 'swift',
    segmentBytes: 4096,
    loss: 0,
    slow: { host: 1, links: 0.5, memory: 1 },
    seed: 1,
  };
  const text = simEpReport(description, result);
  assert.match(text, /across 4 hosts of 2 ranks: 64 tokens each, hidden 2048, bf16, top 4 of 32 experts/);
  assert.match(text, /simulated: 2 of 2 ranks of each host, each row as a write of its own, packets of 4 KiB/);
  assert.match(text, /host 1: links 0\.5 and memory 1 of the others' rate/);
  assert.match(text, /dispatch: rows on the network/);
  assert.match(text, /Dispatch and combine ended at all ranks/);
  const into = simEpPage(description, result).sections.find(
    ({ title }) => title === 'Into the first rank of each host',
  );
  assert.ok(into?.chart?.kind === 'lines' && into.chart.lines.length === description.shape.hosts);
});
