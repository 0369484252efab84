import assert from 'node:assert/strict';
import test from 'node:test';
import {
  type CaseTraffic,
  type EpBenchReport,
  type SpanSamples,
  summarizeCases,
  timeSpans,
} from '#lib/programs/bench/ep/ep-bench.js';
import {
  requireAddressSpace,
  checkEpWorkload,
  combineRowBytes,
  defaultEpWorkload,
  dispatchRowBytes,
  type EpWorkload,
  generateBf16Rows,
  generateFp8Rows,
  generateRouting,
  countPairs,
  countRows,
  countTokens,
  planCopies,
  tokensInRanks,
} from '#lib/programs/bench/ep/ep-workload.js';
import { type BenchGroup, Samples, shuffled, summarize, summarizeRatios } from '#lib/programs/bench/harness.js';
import { loadAverage, machineDocument, placementChanged, samplePlacement } from '#lib/programs/bench/machine.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { epView } from '#lib/programs/cli/bench-ep.js';
import { viewText } from '#lib/programs/report/view.js';
import { readSettings } from 'weftline';

const small: EpWorkload = { ...defaultEpWorkload, tokens: 200, hidden: 256, topk: 4, experts: 16 };

test('summarize() interpolates quartiles and leaves its input alone', () => {
  const values = [5, 1, 4, 2, 3];
  assert.deepEqual(summarize(values), { count: 5, min: 1, p25: 2, median: 3, p75: 4, max: 5 });
  assert.deepEqual(values, [5, 1, 4, 2, 3]);
  assert.deepEqual(summarize([1, 2, 3, 4]), { count: 4, min: 1, p25: 1.75, median: 2.5, p75: 3.25, max: 4 });
  assert.deepEqual(summarize([7]), { count: 1, min: 7, p25: 7, median: 7, p75: 7, max: 7 });
  assert.throws(() => summarize([]), { code: 'WL_INVALID_ARGUMENT' });
});

test('summarizeRatios() pairs iterations, so that a slow phase of the machine cancels out', () => {
  const ceiling = [10, 10, 100, 100, 100];
  const mine = [20, 20, 200, 200, 200];
  const ratios = summarizeRatios(ceiling, mine);
  assert.deepEqual([ratios.min, ratios.median, ratios.max], [0.5, 0.5, 0.5]);
  assert.throws(() => summarizeRatios([1], [1, 2]), { code: 'WL_INVALID_ARGUMENT' });
});

function draws(seed: number): number[] {
  return Array.from({ length: 20_000 }, seededRandom(seed));
}

test('seededRandom() repeats itself, differs by seed and fills [0, 1) evenly', () => {
  assert.deepEqual(draws(3), draws(3));
  assert.notDeepEqual(draws(3).slice(0, 4), draws(4).slice(0, 4));
  const values = draws(1);
  assert.ok(values.every((value) => value >= 0 && value < 1));
  const buckets = Array.from({ length: 10 }, () => 0);
  for (const value of values) buckets[Math.floor(value * 10)] = (buckets[Math.floor(value * 10)] as number) + 1;
  for (const count of buckets) assert.ok(Math.abs(count - 2000) < 200, buckets.join(' '));
});

test('generateRouting() picks distinct experts in range, differs by rank and is spread evenly', () => {
  const { topkIdx, topkWeights } = generateRouting(small, 0);
  assert.equal(topkIdx.length, small.tokens * small.topk);
  assert.equal(topkWeights.length, topkIdx.length);
  const load = Array.from({ length: small.experts }, () => 0);
  for (let token = 0; token < small.tokens; token += 1) {
    const row = topkIdx.subarray(token * small.topk, (token + 1) * small.topk);
    assert.equal(new Set(row).size, small.topk);
    for (const expert of row) load[expert] = (load[expert] as number) + 1;
  }
  assert.ok(Math.min(...load) > 20 && Math.max(...load) < 90, load.join(' '));
  assert.deepEqual(generateRouting(small, 0).topkIdx, topkIdx);
  assert.notDeepEqual(generateRouting(small, 1).topkIdx, topkIdx);
});

/** The expert that nearly every token of the rank goes to. */
function favourite(rank: number): number {
  const load = Array.from({ length: small.experts }, () => 0);
  for (const expert of generateRouting({ ...small, skew: 2 }, rank).topkIdx) {
    load[expert] = (load[expert] as number) + 1;
  }
  assert.ok(Math.max(...load) > small.tokens * 0.9, load.join(' '));
  return load.indexOf(Math.max(...load));
}

test('skew makes the same experts popular on every rank', () => {
  assert.equal(favourite(0), favourite(1));
});

test('generated rows have the right sizes, no NaN, and depend on seed and rank', () => {
  const rows = generateBf16Rows(small, 50, 2);
  assert.equal(rows.length, 50 * small.hidden);
  assert.ok(rows.every((bits) => (bits & 0x7fff) <= 0x3f80));
  assert.deepEqual(generateBf16Rows(small, 50, 2), rows);
  assert.notDeepEqual(generateBf16Rows(small, 50, 3), rows);
  const { data, scales } = generateFp8Rows({ ...small, hidden: 264 }, 50, 0);
  assert.deepEqual([data.length, scales.length], [50 * 264, 50 * 3]);
  assert.ok(data.every((bits) => (bits & 0x7f) !== 0x7f));
  assert.ok(scales.every((scale) => scale >= 0.5 && scale < 1.5));
});

test('row sizes are those of the field: fp8 with a scale per 128', () => {
  assert.equal(dispatchRowBytes(defaultEpWorkload), 14_336);
  assert.equal(dispatchRowBytes({ ...defaultEpWorkload, dtype: 'fp8' }), 7168 + 224);
  assert.equal(combineRowBytes({ ...defaultEpWorkload, dtype: 'fp8' }), 14_336);
});

test('checkEpWorkload() names the first value that does not work', () => {
  checkEpWorkload(defaultEpWorkload);
  const wrong: readonly (readonly [Partial<EpWorkload>, RegExp])[] = [
    [{ ranks: 0 }, /ranks: expected .*, got 0/],
    [{ ranks: 3 }, /experts: expected a multiple of ranks, 3, got 256/],
    [{ hidden: 100 }, /hidden: expected .*, got 100/],
    [{ tokens: 1.5 }, /tokens: expected .*, got 1.5/],
    [{ topk: 33 }, /topk: expected 1 to 32, got 33/],
    [{ topk: 5, experts: 4 }, /topk: expected 1 to 4, got 5/],
    [{ skew: -1 }, /skew: expected .*, got -1/],
  ];
  for (const [values, message] of wrong) {
    assert.throws(() => checkEpWorkload({ ...defaultEpWorkload, ...values }), { code: 'WL_INVALID_ARGUMENT', message });
  }
});

test('requireAddressSpace() lets the usual configuration pass and says what another one needs', () => {
  const limit = 4 * 2 ** 30;
  requireAddressSpace(defaultEpWorkload, true, limit);
  requireAddressSpace({ ...defaultEpWorkload, dtype: 'fp8' }, true, limit);
  const more = { ...defaultEpWorkload, tokens: 8000 };
  requireAddressSpace(more, false, limit);
  assert.throws(() => requireAddressSpace(more, true, limit), {
    code: 'WL_MEMORY',
    message: /All2AllLayer .* GiB.*no-layer/,
  });
  // Two hosts of two ranks map half the windows, and have a network side besides.
  const apart = { ...defaultEpWorkload, tokens: 8000 };
  assert.throws(() => requireAddressSpace(apart, true, 2 * 2 ** 30, [2, 2]), {
    code: 'WL_MEMORY',
    message: /windows of EPAll2AllLayer .* GiB, their network side .* [GM]iB, tensors/,
  });
  const far = { ...defaultEpWorkload, ranks: 2, tokens: 200_000 };
  assert.throws(() => requireAddressSpace(far, false, limit), {
    code: 'WL_MEMORY',
    message: /which is 4 GiB.*fewer tokens/,
  });
});

test('planCopies() gives each (token, rank) one row, ordered by source rank, then token', () => {
  const { ranks, topk, experts, tokens } = small;
  const inRanks = Array.from({ length: ranks }, (_, rank) =>
    tokensInRanks(generateRouting(small, rank).topkIdx, topk, experts / ranks, ranks),
  );
  const counts = inRanks.map((flags) => countTokens(flags, ranks));
  const received = Array.from({ length: ranks }, () => new Map<number, string>());
  for (const [rank, flags] of inRanks.entries()) {
    const plan = planCopies(flags, counts, rank);
    assert.deepEqual(
      [...plan.tokens],
      [...plan.tokens].toSorted((a, b) => a - b),
    );
    for (const [index, token] of plan.tokens.entries()) {
      const rows = received[plan.destinations[index] as number] as Map<number, string>;
      assert.ok(!rows.has(plan.rows[index] as number), 'a row is written twice');
      rows.set(plan.rows[index] as number, `${rank} ${String(token).padStart(5, '0')}`);
    }
  }
  for (const [destination, rows] of received.entries()) {
    const total = counts.reduce((sum, row) => sum + (row[destination] as number), 0);
    const inOrder = Array.from({ length: total }, (_, row) => rows.get(row) as string);
    assert.deepEqual(inOrder, inOrder.toSorted());
    assert.equal(rows.size, total);
  }
  const all = countRows(counts);
  assert.equal(
    all.logical,
    received.reduce((sum, rows) => sum + rows.size, 0),
  );
  assert.equal(
    all.logical - all.wire,
    counts.reduce((sum, row, rank) => sum + (row[rank] as number), 0),
  );
  assert.ok(all.logical <= tokens * ranks * Math.min(topk, ranks));
});

test('ids of -1 are nobody, and countPairs() counts every expert of a token', () => {
  const topkIdx = Int32Array.from([0, 1, 3, -1, -1, -1, 2, 0, 1]);
  assert.deepEqual([...tokensInRanks(topkIdx, 3, 2, 2)], [1, 1, 0, 0, 1, 1]);
  assert.deepEqual(countTokens(Uint8Array.from([1, 1, 0, 0, 1, 1]), 2), [2, 2]);
  assert.deepEqual(countPairs(topkIdx, 2, 2), [4, 2]);
  assert.deepEqual(
    countRows([
      [2, 3],
      [1, 4],
    ]),
    { logical: 10, wire: 4 },
  );
  assert.deepEqual(
    [
      ...planCopies(
        new Uint8Array(4),
        [
          [0, 0],
          [0, 0],
        ],
        1,
      ).rows,
    ],
    [],
  );
});

test('shuffled() is a permutation that only the iteration determines, and most iterations differ', () => {
  const orders = Array.from({ length: 20 }, (_, iteration) => shuffled(7, iteration));
  for (const [iteration, order] of orders.entries()) {
    assert.deepEqual(
      order.toSorted((a, b) => a - b),
      [0, 1, 2, 3, 4, 5, 6],
    );
    assert.deepEqual(order, shuffled(7, iteration));
  }
  assert.ok(new Set(orders.map(String)).size > 10);
});

test('timeSpans() takes cases in turn, and all ranks learn when each began and ended', async () => {
  const log: string[] = [];
  const progress: number[] = [];
  const ranks = makeGroup(2);
  const results = await Promise.all(
    ranks.map((group) => {
      // A clock of its own per rank on one time line: rank 1 begins 5 later, and case b takes 10 there instead of 3.
      let time = group.rank * 5;
      const work =
        (name: string, duration: number): (() => void) =>
        () => {
          if (group.rank === 0) log.push(name);
          time += duration;
        };
      return timeSpans(
        group,
        [
          { name: 'a', run: work('a', 2) },
          {
            name: 'b',
            prepare: () => void (group.rank === 0 && log.push('prepare')),
            run: work('b', group.rank === 0 ? 3 : 10),
          },
        ],
        {
          warmup: 1,
          iterations: 3,
          order: (count) => Array.from({ length: count }, (_, index) => index),
          ...(group.rank === 0 ? { progress: (done: number) => progress.push(done) } : {}),
        },
        () => time,
      );
    }),
  );
  assert.deepEqual(log, ['a', 'prepare', 'b', 'a', 'prepare', 'b', 'a', 'prepare', 'b', 'a', 'prepare', 'b']);
  assert.deepEqual(progress, [1, 2, 3, 4]);
  assert.deepEqual(results[0], results[1]);
  const [a, b] = results[0]!;
  // Each iteration takes rank 0 5 and rank 1 12: rank 1 is 5 + 7 i late when iteration i begins.
  assert.deepEqual(a!.ranks[0], { begin: [5, 10, 15], end: [7, 12, 17] });
  assert.deepEqual(a!.ranks[1], { begin: [17, 29, 41], end: [19, 31, 43] });
  assert.deepEqual(b!.slowest('end'), [29, 41, 53]);
});

/** Samples of one rank that begins at 0. */
function span(...times: readonly number[]): SpanSamples {
  return new Samples([{ begin: times.map(() => 0), end: times }]);
}

test('summarizeCases() compares bandwidths with the ceiling of the same iteration', () => {
  const [ceiling, same, double] = summarizeCases([span(100, 200), span(125, 250), span(200, 400)], traffic, 4);
  assert.equal(ceiling?.ratioToCeiling.median, 1);
  assert.equal(ceiling?.logicalGBps.max, 10);
  assert.equal(ceiling?.wireGBps.max, 7.5);
  assert.equal(ceiling?.logicalGBpsPerRank.max, 2.5);
  assert.equal(same?.ratioToCeiling.median, 0.8);
  assert.deepEqual([same?.beyondCopyingMicroseconds.min, same?.beyondCopyingMicroseconds.max], [25, 50]);
  assert.equal(double?.ratioToCeiling.median, 1);
  assert.deepEqual([same?.ratioToCopyBack, double?.ratioToCopyBack?.median], [undefined, 1.25]);
  assert.equal(double?.beyondCopyingMicroseconds.median, 0);
});

test('the report has a row per case, and says when the machine changed', () => {
  const times = traffic.map(() => span(1000, 1200));
  const steady = { arithmeticMilliseconds: 5, coreRoundTripNanoseconds: 100 };
  const report: EpBenchReport = {
    schema: 'weftline.bench.ep/1',
    date: '2026-01-01T00:00:00.000Z',
    method: {} as EpBenchReport['method'],
    workload: small,
    warmup: 1,
    iterations: 2,
    machine: machineDocument(),
    settings: readSettings({}, {}),
    loadAverage: { before: 0.1, after: loadAverage() },
    placement: { before: steady, after: steady },
    memory: {
      bufferWindowsBytes: 1 << 30,
      layerWindowsBytes: 5 << 20,
      deviceBytes: 1 << 31,
      deepEpHintBytes: undefined,
    },
    cases: summarizeCases(times, traffic, 4),
  };
  const text = viewText(epView(report));
  for (const { name } of traffic)
    assert.match(text, new RegExp(`│ ${name} +│ +1\\.10 ms │ \\(1\\.05 ms to 1\\.15 ms\\) │`));
  assert.match(text, /windows of EpBuffer 1 GiB, of EPAll2AllLayer 5 MiB \(all ranks\)/);
  assert.doesNotMatch(text, /changed/);
  const far = { ...report, placement: { before: steady, after: { ...steady, coreRoundTripNanoseconds: 400 } } };
  assert.match(viewText(epView(far)), /The machine changed while it ran/);
  assert.deepEqual(JSON.parse(JSON.stringify(report)).cases, report.cases);
});

test('samplePlacement() measures, and an unknown round trip never counts as a change', async () => {
  const sample = await samplePlacement();
  assert.ok(sample.arithmeticMilliseconds > 0);
  assert.ok(sample.coreRoundTripNanoseconds === undefined || sample.coreRoundTripNanoseconds > 0);
  const unknown = { ...sample, coreRoundTripNanoseconds: undefined };
  assert.equal(placementChanged(sample, unknown), false);
  assert.ok(placementChanged(sample, { ...sample, arithmeticMilliseconds: sample.arithmeticMilliseconds * 2 }));
});

test('machineDocument() knows the package and, in a checkout, the commit', () => {
  const machine = machineDocument();
  assert.match(machine.weftlineVersion, /^\d+\.\d+\.\d+/);
  assert.ok(machine.commit === undefined || /^[0-9a-f]{40}$/.test(machine.commit));
  assert.equal(machine.nodeVersion, process.versions.node);
});

const traffic: readonly CaseTraffic[] = [
  { name: 'ceiling', description: 'copies', rows: { logical: 1000, wire: 750 }, rowBytes: 1000 },
  { name: 'same', description: 'same bytes', rows: { logical: 1000, wire: 750 }, rowBytes: 1000 },
  {
    name: 'double',
    description: 'twice the bytes',
    rows: { logical: 1000, wire: 750 },
    rowBytes: 2000,
    copyBack: 'same',
  },
];

/** Ranks in one process: each collective ends when all have called it. */
function makeGroup(size: number): BenchGroup[] {
  let meeting: { readonly values: unknown[]; readonly leave: (() => void)[] } = { values: [], leave: [] };
  const meet = async <T>(rank: number, value: T): Promise<T[]> => {
    const mine = meeting;
    mine.values[rank] = value;
    await new Promise<void>((resolve) => {
      mine.leave.push(resolve);
      if (mine.leave.length < size) return;
      meeting = { values: [], leave: [] };
      for (const leave of mine.leave) leave();
    });
    return mine.values as T[];
  };
  return Array.from({ length: size }, (_, rank) => ({
    rank,
    size,
    barrier: async () => void (await meet(rank, undefined)),
    allGather: (_name, value) => meet(rank, value),
  }));
}
