import assert from 'node:assert/strict';
import test from 'node:test';
import { type CopyOf, copyShapes, stagedBytes } from '#lib/programs/bench/ep/cuda-copies.js';
import {
  type CudaCase,
  type CudaSamples,
  type EpCudaBenchReport,
  summarizeCudaCases,
} from '#lib/programs/bench/ep/cuda-bench.js';
import { Samples } from '#lib/programs/bench/harness.js';
import { defaultEpWorkload } from '#lib/programs/bench/ep/ep-workload.js';
import { machineDocument, parseLinks } from '#lib/programs/bench/machine.js';
import { epCudaView } from '#lib/programs/cli/bench-ep.js';
import { viewText } from '#lib/programs/report/view.js';
import { readSettings } from 'weftline';

const push: CopyOf = { direction: 'push', numSms: 16, ranks: 4, rowBytes: 14_336, room: 230_400 };

test('copyShapes() tries whole rows and equal parts of them, in all shapes that fit', () => {
  const shapes = copyShapes(push);
  assert.deepEqual([...new Set(shapes.map((shape) => shape.partBytes))], [14_336, 7168, 3584, 2048, 1024]);
  assert.deepEqual(new Set(shapes.map((shape) => shape.blocks)), new Set([16, 15, 14, 13, 12, 11, 10, 9, 8]));
  assert.ok(shapes.some(({ warps, slots, partBytes }) => warps === 16 && slots === 1 && partBytes === 7168));
  assert.ok(shapes.every((shape) => stagedBytes(push, shape) <= push.room));
  assert.ok(!shapes.some(({ warps, partBytes }) => warps === 32 && partBytes === 14_336));
});

test('copyShapes() tries few numbers of blocks among many multiprocessors, and one alone', () => {
  for (const [numSms, blocks] of [
    [132, [132, 123, 114, 105, 96, 87, 78, 69]],
    [1, [1]],
  ] as const) {
    assert.deepEqual([...new Set(copyShapes({ ...push, numSms }).map((shape) => shape.blocks))], blocks);
  }
});

test('copyShapes() stages a row of every rank for a pull', () => {
  const pull: CopyOf = { ...push, direction: 'pull' };
  assert.equal(stagedBytes(pull, { warps: 8, slots: 2, partBytes: 3584 }), 8 * 2 * 4 * 3584);
  assert.ok(copyShapes(pull).length < copyShapes(push).length);
});

test('copyShapes() finds a shape for the smallest rows, for rows of no whole vectors and for huge ones', () => {
  for (const rowBytes of [8, 16, 136, 1_000_000]) {
    const of: CopyOf = { ...push, direction: 'pull', ranks: 8, rowBytes };
    const shapes = copyShapes(of);
    assert.ok(shapes.length > 0);
    assert.ok(shapes.every(({ partBytes }) => partBytes % 16 === 0 && partBytes > 0));
  }
});

test('parseLinks() reads the square of the GPUs', () => {
  const text = `\t\u001B[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\u001B[0m
GPU0\t X \tNV18\tSYS\t0-63\t0
GPU1\tNV18\t X \tNODE\t0-63\t0
NIC0\tSYS\tNODE\t X

Legend:
  X    = Self`;
  assert.deepEqual(parseLinks(text), [
    ['X', 'NV18'],
    ['NV18', 'X'],
  ]);
  assert.deepEqual(parseLinks('\tGPU0\tCPU Affinity\nGPU0\t X \t0-15'), [['X']]);
  assert.equal(parseLinks('No devices were found'), undefined);
});

const rows = { logical: 4000, wire: 3000 };
const cases: readonly CudaCase[] = [
  { name: 'push', description: 'copies', rows, rowBytes: 1000, copies: [], run: () => {} },
  { name: 'pull', description: 'copies', rows, rowBytes: 500, copies: [], run: () => {} },
  { name: 'cached', description: 'rows', rows, rowBytes: 1000, copies: ['push'], run: () => {} },
  {
    name: 'both',
    description: 'rows there and back',
    rows,
    rowBytes: 1500,
    copies: ['push', 'pull'],
    cached: 'cached',
    run: () => {},
  },
  { name: 'twice', description: 'more rows', rows, rowBytes: 500, copies: ['pull'], copyScale: 2, run: () => {} },
];
const times: readonly CudaSamples[] = [
  timesOf(10, 12),
  timesOf(20, 24),
  timesOf(16, 24),
  timesOf(40, 48),
  timesOf(50, 60),
];

/** Two iterations on two ranks, of which rank 0 is the slower one. */
function timesOf(first: number, second: number): CudaSamples {
  const host = { returned: [5, 7], ready: [first + 10, second + 10] };
  return new Samples([
    { device: [first, second], ...host },
    { device: [first - 1, second - 1], ...host },
  ]);
}

test('summarizeCudaCases() compares with the copies of the same iteration, added up where there are several', () => {
  const [pushed, , cached, both, twice] = summarizeCudaCases(times, cases, 2);
  assert.deepEqual([pushed?.ratioToCopy, pushed?.beyondCached], [undefined, undefined]);
  assert.deepEqual([pushed?.logicalGBpsPerRank.max, pushed?.wireGBps.max], [200, 300]);
  assert.deepEqual(pushed?.microsecondsOfRanks, [11, 10]);
  assert.deepEqual([cached?.ratioToCopy?.min, cached?.ratioToCopy?.max], [0.5, 0.625]);
  assert.deepEqual([both?.ratioToCopy?.min, both?.ratioToCopy?.max], [0.75, 0.75]);
  assert.equal(both?.beyondCopyMicroseconds?.min, 10);
  assert.deepEqual([both?.beyondCached?.microseconds.median, both?.beyondCached?.readyMicroseconds.median], [24, 24]);
  assert.equal(cached?.returnedMicroseconds.median, 6);
  assert.deepEqual([twice?.ratioToCopy?.min, twice?.ratioToCopy?.max], [0.8, 0.8]);
});

test('the report shows the sweep of each case, the copies that were kept, and the GPUs', () => {
  const { dtype: _, ...workload } = { ...defaultEpWorkload, ranks: 2 };
  const gpu = {
    name: 'GPU of a test',
    multiprocessors: 132,
    totalBytes: 1 << 30,
    clockKiloHertz: 1_980_000,
    capability: { major: 9, minor: 0 },
  };
  const placement = { arithmeticMilliseconds: 5, coreRoundTripNanoseconds: 100 };
  const shape = { blocks: 7, warps: 16, slots: 1, partBytes: 7168, shapesTried: 40 };
  const results = summarizeCudaCases(times, cases, 2);
  const report: EpCudaBenchReport = {
    schema: 'weftline.bench.ep.cuda/1',
    date: '2026-01-01T00:00:00.000Z',
    method: {} as EpCudaBenchReport['method'],
    workload,
    dtypes: ['bf16'],
    warmup: 1,
    iterations: 2,
    machine: machineDocument(),
    gpuMachine: {
      gpus: [gpu, gpu],
      driver: '580.1',
      cuda: '13.0',
      links: [
        ['X', 'NV18'],
        ['NV18', 'X'],
      ],
    },
    settings: readSettings({}, {}),
    loadAverage: { before: 0, after: 0 },
    placement: { before: placement, after: placement },
    runs: [8, 16].map((numSms) => ({
      numSms,
      copyShapes: { push: shape },
      bufferWindowBytes: 1 << 20,
      layerWindowBytes: 1 << 21,
      cases: results,
    })),
  };
  const text = viewText(epCudaView(report));
  for (const sms of [8, 16]) {
    assert.match(text, new RegExp(`│ cached +│ +${sms} │ +20\\.0 │ \\(18\\.0 to 22\\.0\\) │ .*│ 0\\.563 │`));
    assert.match(
      text,
      new RegExp(`push, ${sms} SMs: 7 blocks of 16 warps, 1 in flight, parts of 7168 bytes; best of 40`),
    );
  }
  assert.match(text, /│ +24\.0, 24\.0 │/);
  assert.match(text, /2 x GPU of a test \(132 SMs\), driver 580\.1 \(CUDA 13\.0\), linked by NV18/);
  assert.deepEqual(JSON.parse(JSON.stringify(report)).runs, report.runs);
});
