// Sizes and reference of EpLowLatency, worked out by hand.
import assert from 'node:assert/strict';
import test from 'node:test';
import { fromBf16, toBf16 } from 'weftline';
import { type LowLatencyConfig, lowLatencySize } from 'weftline/ep';
import { referenceLowLatencyCombine, referenceLowLatencyDispatch } from 'weftline/reference';
import { fp8SumBytes } from '#lib/abi/element-formats.js';
import { lowLatencyChoice, lowLatencyFlags, lowLatencyHostMessage } from '#lib/abi/low-latency.js';
import type { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import type { MemoryRange } from '#lib/device/tensor.js';
import { emptyRegions } from '#lib/ep/low-latency/cuda/create-cuda-low-latency.js';
import { referenceLossyRow } from '#lib/reference/fp8-rows.js';
import { type LowLatencyScope, withLowLatencyDefaults } from '#lib/ep/low-latency/low-latency-size.js';
import fc from '../../support/fast-check.ts';
import { withCode } from '../../support/with-code.ts';

const config = { maxTokensPerRank: 128, hidden: 7168, numExperts: 288, maxTopk: 8 };

test('windows hold rows once per (token, rank), twice for dispatch and twice for combine; results are the rank own', () => {
  const size = lowLatencySize(config, 4);
  assert.equal(size.receiveSlots, 2);
  assert.equal(size.regions.rows.bytes, 2 * 4 * 128 * 14_336);
  assert.equal(size.combineRowCount, 4 * 128);
  assert.equal(size.resultBytes.bf16, 72 * 4 * 128 * 14_336);
  assert.equal(size.resultBytes.fp8, 72 * 4 * 128 * (7168 + 56 * 4));
  assert.ok(size.bytes < 32 * 2 ** 20, `${size.bytes}`);
  assert.equal(lowLatencySize({ ...config, maxTokensPerExpert: 16 }, 4).resultBytes.bf16, 72 * 16 * 14_336);
});

test('where every choice travels the window holds the rows of all experts, twice', () => {
  const size = lowLatencySize({ ...config, combineTravels: 'choices', maxTokensPerExpert: 64 }, 4);
  assert.equal(size.regions.combineRows.bytes, 2 * 72 * 64 * 14_336);
});

test('rows by rank stay in the window, in three slots', () => {
  const size = lowLatencySize({ ...config, layout: 'rank-major' }, 4);
  assert.equal(size.receiveSlots, 3);
  assert.deepEqual(size.resultBytes, { bf16: 0, fp8: 0 });
  for (const { offset, stride } of Object.values(size.regions)) assert.equal((offset | stride) % 128, 0);
});

test('a configuration that cannot be is refused with its value', () => {
  for (const [wrong, message] of [
    [{ hidden: 12 }, /hidden/],
    [{ numExperts: 3 }, /numExperts/],
    [{ maxTopk: 0 }, /maxTopk/],
    [{ maxTokensPerRank: 0.5 }, /maxTokensPerRank/],
    [{ maxTokensPerExpert: -1 }, /maxTokensPerExpert/],
    [{ layout: 'flat' }, /layout/],
    [{ overflow: 'ignore' }, /overflow/],
    [{ combineTravels: 'rows' }, /combineTravels/],
    [{ combinePrecision: 'fp8' }, /combinePrecision: expected "bf16" or "f32" or "fp8-lossy", got "fp8"/],
    [{ numSms: -1 }, /numSms/],
    [{ numSms: 8 }, /numSms/],
    [{ layout: 'rank-major', overflow: 'drop' }, /overflow.*nothing with layout 'rank-major'/],
    [{ capacity: 1 }, /capacity/],
  ] as const) {
    const given = { ...config, ...wrong } as typeof config;
    assert.throws(() => lowLatencySize(given, 4), withCode('WL_INVALID_ARGUMENT', message));
  }
  assert.throws(() => lowLatencySize(null as never, 4), withCode('WL_INVALID_ARGUMENT'));
  assert.throws(() => lowLatencySize(config, 5), withCode('WL_INVALID_ARGUMENT', /5 ranks/));
});

test('on GPUs fp8 rows by expert of fixed ranks have memory of their own, for each word of it is empty between calls', () => {
  const fixed = lowLatencySize(config, 4, 'cuda').regions;
  assert.equal(fixed.fp8Rows.bytes, fixed.rows.bytes / 2);
  assert.equal(lowLatencySize({ ...config, elastic: true }, 4, 'cuda').regions.fp8Rows.bytes, 0);
  assert.equal(lowLatencySize({ ...config, layout: 'rank-major' }, 4, 'cuda').regions.fp8Rows.bytes, 0);
  assert.equal(lowLatencySize(config, 4).regions.fp8Rows.bytes, 0);
});

/** Names of the regions of a window at 4096 that are filled, each as a whole. */
function filled(given: Partial<LowLatencyConfig>): string[] {
  const full = { ...config, ...given };
  const size = lowLatencySize(full, 4, 'cuda');
  const set: [number, number, number][] = [];
  const device = { setBytes: (memory: MemoryRange, byte: number) => set.push([memory.address, memory.bytes, byte]) };
  const scope = { device, config: withLowLatencyDefaults(full, 4), size };
  emptyRegions(scope as unknown as LowLatencyScope<CudaDevice>, 4096);
  const names = Object.entries(size.regions).filter(([, { offset, bytes }]) =>
    set.some(([address, length, byte]) => address === 4096 + offset && length === bytes && bytes > 0 && byte === 0xff),
  );
  assert.equal(names.length, set.length);
  return names.map(([name]) => name);
}

test('on GPUs the regions whose words show that they have come are filled before use, and no others', () => {
  assert.deepEqual(filled({}), ['combineRows', 'fp8Rows', 'scales']);
  assert.deepEqual(filled({ combineTravels: 'choices', maxTokensPerExpert: 64 }), ['fp8Rows', 'scales']);
  assert.deepEqual(filled({ elastic: true }), []);
  assert.deepEqual(filled({ layout: 'rank-major' }), []);
  // Kernels read and write these at once.
  assert.equal((lowLatencyFlags.offset.calls | lowLatencyFlags.size | lowLatencyChoice.size) % 16, 0);
});

test('on GPUs across hosts a stand-in is the begin of a window, with sums of the ranks of one host, and messages have room', () => {
  const { regions, network, receiveSlots } = lowLatencySize(config, 4, 'cuda', [1, 3]);
  // The rank that is alone on its host serves the three others; they share its messages among them.
  const { cells, combineRows, standIns } = regions;
  assert.equal(combineRows.offset, cells.bytes);
  assert.equal(combineRows.stride, 3 * config.maxTokensPerRank * config.hidden * 2);
  assert.equal(standIns.stride, cells.bytes + combineRows.bytes);
  assert.equal(standIns.bytes, 3 * standIns.stride);
  assert.equal(regions.sent.bytes + regions.networkCells.bytes, 0);
  const { slotBytes, sumsBytes } = network!;
  const most = config.maxTokensPerRank;
  assert.ok(
    slotBytes >= lowLatencyHostMessage.size + most * (4 + config.maxTopk * lowLatencyChoice.size + config.hidden * 2),
  );
  assert.ok(sumsBytes >= lowLatencyHostMessage.size + most * config.hidden * 2);
  assert.equal(network!.regions.in.bytes, 3 * receiveSlots * slotBytes);
  assert.equal(network!.regions.returned.bytes, 2 * sumsBytes);
  assert.equal(lowLatencySize(config, 4, 'cuda').network, undefined);
  assert.equal(lowLatencySize(config, 4, 'cuda').regions.standIns.bytes, 0);
  const byRank = lowLatencySize({ ...config, layout: 'rank-major' }, 4, 'cuda', [2, 2]).regions;
  assert.equal(byRank.standIns.stride, byRank.cells.bytes);
});

test('sums of other hosts take what they are sent as, fp8-lossy with its scales, and on one host nothing', () => {
  for (const [combinePrecision, row] of [
    ['bf16', 14_336],
    ['f32', 28_672],
    ['fp8-lossy', 7168 + 7168 / 32],
  ] as const) {
    const given = { ...config, combinePrecision };
    const { sums, returned } = lowLatencySize(given, 4, 'cpu', [2, 2]).regions;
    for (const region of [sums, returned]) assert.equal(region.stride, Math.ceil((64 + 128 * row) / 128) * 128);
    const { sumsBytes } = lowLatencySize(given, 4, 'cuda', [2, 2]).network!;
    assert.equal(sumsBytes, Math.ceil((64 + 128 * row) / 128) * 128);
    assert.equal(lowLatencySize(given, 4).bytes, lowLatencySize(config, 4).bytes);
  }
  // Scales of 8 bytes for 136 columns and of 4, up to a word of 8, for 24.
  assert.deepEqual([136, 24].map(fp8SumBytes), [144, 32]);
});

test('on GPUs windows are not of shared memory, begin with the flags, and hold the counts of all experts', () => {
  const size = lowLatencySize(config, 4, 'cuda');
  assert.equal(size.sharedMemoryBytes, 0);
  assert.deepEqual(size.regions.cells, { offset: 0, bytes: 4 * 256, stride: 4 * 256 });
  assert.equal(size.regions.expertCounts.bytes, 4 * 288 * 8);
  assert.equal(size.regions.bell.bytes, 0);
});

test('the reference drops the last rows of a full expert, and packs exponents lowest first', () => {
  const one = { x: [[0x3f80], [0x4000]], topkIdx: [[0], [0]] };
  const [received] = referenceLowLatencyDispatch([one], { numExperts: 1, scales: 'ue8m0', maxTokensPerExpert: 1 });
  assert.deepEqual(received?.dropped, [1]);
  assert.deepEqual(
    received.byExpert[0]?.map(({ sourceToken }) => sourceToken),
    [0],
  );
  // 1 / 448 lies between 2^-9 and 2^-8, so 1 travels as 2^8 with the exponent of 2^-8.
  assert.deepEqual(received.byRank[0]?.[0]?.scales, [127 - 8]);
  assert.deepEqual(received.byRank[0]?.[0]?.data, [0x78]);
});

test('the reference rounds once, or once per rank and once at the end', () => {
  const weights = [0.5, 0.5, 1];
  const token = { x: [[0]], topkIdx: [[0, 1, 2]], topkWeights: [weights] };
  const none = { x: [], topkIdx: [], topkWeights: [] };
  const inputs = [token, none];
  const received = referenceLowLatencyDispatch(inputs, { numExperts: 4 });
  // Halves of 256 and 1: 128.5 is no bf16, and rounds to even.
  const outputs = [
    [[[toBf16(256)]], [[toBf16(1)]]],
    [[[toBf16(0.5)]], []],
  ];
  const combine = (mode: 'choices' | 'rank-sums'): number[] =>
    referenceLowLatencyCombine({ inputs, received, outputs, mode }, { rank: 0, token: 0, hidden: 1 });
  assert.deepEqual(combine('choices'), [toBf16(129)]);
  assert.deepEqual(combine('rank-sums'), [toBf16(128)]);
});

/** What rank 0 gets back of one token, whose experts' rows are `values` by rank. */
function combined(
  values: readonly (readonly number[])[],
  of: Pick<Parameters<typeof referenceLowLatencyCombine>[0], 'hosts' | 'combinePrecision' | 'mode' | 'active'>,
): number[] {
  const ranks = values.map((_, rank) => rank);
  const inputs = ranks.map((rank) =>
    rank === 0 ? { x: [[0]], topkIdx: [ranks], topkWeights: [ranks.map(() => 1)] } : { x: [], topkIdx: [] },
  );
  const received = referenceLowLatencyDispatch(inputs, { numExperts: ranks.length });
  const outputs = values.map((row) => [[row.map(toBf16)]]);
  const { length: hidden } = values[0]!;
  return referenceLowLatencyCombine({ inputs, received, outputs, ...of }, { rank: 0, token: 0, hidden }).map(fromBf16);
}

const combineModes = ['rank-sums', 'choices', 'rank-major'] as const;

test('of a lossy combine the f32 sum of another host becomes fp8, what stays on the host does not', () => {
  for (const mode of combineModes) {
    const lossy = { mode, combinePrecision: 'fp8-lossy' } as const;
    // 448 makes the scale 1. 272.5 would round to 272 as bf16 and then, in the middle of the codes for 256 and 288, to 256.
    const rows = [
      [0, 0, 0],
      [448, 240, 272],
      [0, 1, 0.5],
    ];
    assert.deepEqual(combined(rows, { ...lossy, hosts: [[0], [1, 2]] }), [448, 240, 288]);
    assert.deepEqual(combined(rows, lossy), [448, 241, 272]);
    assert.deepEqual(combined(rows, { ...lossy, hosts: [[0, 1, 2]] }), [448, 241, 272]);
    // Rows of the own host are added as they are to what came.
    const own = [[8, 1, 8], ...rows.slice(1)];
    assert.deepEqual(combined(own, { ...lossy, hosts: [[0], [1, 2]] }), [456, 241, 296]);
  }
});

test('a lossy sum is off by a 16th of itself at most, or by 2^-18 of the largest of its 128 columns', () => {
  const finite = fc.float({ min: -1e6, max: 1e6, noNaN: true });
  const row = fc.array(fc.oneof(finite, fc.float({ min: -1, max: 1, noNaN: true })), { minLength: 8, maxLength: 264 });
  fc.assert(
    fc.property(row, (values) => {
      const got = referenceLossyRow(values);
      for (const [column, value] of values.entries()) {
        const group = values.slice(column - (column % 128), column - (column % 128) + 128);
        const largest = Math.max(1e-4, ...group.map(Math.abs));
        const off = Math.abs(got[column]! - value);
        assert.ok(off <= Math.max(Math.abs(value) / 16, largest * 2 ** -18), `${value} became ${got[column]}`);
      }
    }),
  );
});

test('a host whose ranks take no part adds nothing to a sum, not even a zero', () => {
  for (const mode of combineModes) {
    const sum = combined([[-0], [1]], { mode, hosts: [[0], [1]], active: [true, false] });
    assert.ok(Object.is(sum[0], -0), mode);
  }
});
