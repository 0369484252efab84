import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, fromBf16, toBf16 } from 'weftline';
import { fromFp8e4m3, toFp8e4m3Saturating } from '#lib/reference/fp8-rows.js';
import { dequantizeRows, quantizeRows } from '#lib/device/cpu/fp8-rows.js';

const f = Math.fround;
const device = await CpuDevice.create();
const { kernels } = device;

/** Repeatable numbers in [-1, 1). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return state / 2 ** 31;
  };
}

const specialBf16 = [
  0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xff81,
  0x3f80,
];

/** bf16 patterns; every `every`-th is a special one, 0 for none. */
function bf16Values(count: number, seed: number, every = 0): Uint16Array {
  const next = randomNumbers(seed);
  return Uint16Array.from({ length: count }, (_, index) =>
    every > 0 && index % every === 0
      ? (specialBf16[(index / every) % specialBf16.length] as number)
      : toBf16(next() * 2 ** Math.round(next() * 6)),
  );
}

/** What quantizeFp8 promises, one element after the other. */
function quantizePlainly(x: Uint16Array, columns: number, roundScale: boolean): { data: number[]; scales: number[] } {
  const data: number[] = [];
  const scales: number[] = [];
  const largest = fromBf16(0x7f7f);
  for (let row = 0; row < x.length; row += columns) {
    for (let group = 0; group < columns; group += 128) {
      const values = [...x.subarray(row + group, row + Math.min(group + 128, columns))].map(fromBf16);
      const magnitudes = values
        .filter((value) => !Number.isNaN(value))
        .map((value) => Math.min(Math.abs(value), largest));
      const amax = Math.max(f(1e-4), ...magnitudes);
      let inverse = f(amax / 448);
      let scale = f(448 / amax);
      if (roundScale) {
        let power = 2 ** -126;
        while (power < inverse) power *= 2;
        inverse = power;
        scale = 1 / power;
      }
      scales.push(inverse);
      for (const value of values) data.push(toFp8e4m3Saturating(f(value * scale)));
    }
  }
  return { data, scales };
}

for (const columns of [8, 24, 120, 128, 136, 256, 7168]) {
  for (const roundScale of [false, true]) {
    test(`quantizeFp8 of ${columns} columns is the plain one, bit for bit (roundScale ${roundScale})`, async () => {
      const rows = columns === 7168 ? 3 : 17;
      const values = bf16Values(rows * columns, columns, 7);
      // A row of zeros, one of tiny numbers (below the floor of the scale), and one without special values.
      values.fill(0, 0, columns);
      values.fill(toBf16(1e-6), columns, 2 * columns);
      values.set(bf16Values(columns, 5), 2 * columns);
      const x = await device.tensor('bf16', [rows, columns], values);
      const out = quantizeRows(device, x, { roundScale });
      const expected = quantizePlainly(values, columns, roundScale);
      assert.deepEqual([...out.scales.view()], expected.scales);
      assertCodes(out.data.view(), expected.data, values);
      const back = dequantizeRows(device, out);
      const groups = Math.ceil(columns / 128);
      const codes = out.data.view();
      assert.deepEqual(
        [...back.view()],
        Array.from(codes, (code, index) => {
          const scale = expected.scales[Math.floor(index / columns) * groups + Math.floor((index % columns) / 128)];
          return toBf16(f(fromFp8e4m3(code) * (scale as number)));
        }),
      );
      for (const tensor of [x, out.data, out.scales, back]) tensor.close();
    });
  }
}

function assertCodes(actual: Uint8Array, expected: readonly number[], values: Uint16Array): void {
  assert.equal(actual.length, expected.length);
  for (const [index, code] of actual.entries()) {
    const pattern = values[index] as number;
    // A NaN of either sign is 0x7f: low-latency kernels rely on it that no code is 0xff.
    const wanted = (pattern & 0x7fff) > 0x7f80 ? 0x7f : expected[index];
    assert.equal(code, wanted, `element ${index}, bf16 0x${pattern.toString(16)}`);
  }
}

test('dequantizeFp8 gives all 256 codes back, NaN as 0x7fc0', async () => {
  const data = await device.tensor(
    'fp8e4m3',
    [2, 128],
    Uint8Array.from({ length: 256 }, (_, code) => code),
  );
  const scales = await device.tensor('f32', [2, 1], Float32Array.from([1, 0.37]));
  const x = dequantizeRows(device, { data, scales });
  assert.deepEqual(
    [...x.view()],
    Array.from({ length: 256 }, (_, code) => toBf16(f(fromFp8e4m3(code) * f(code < 128 ? 1 : 0.37)))),
  );
});

test('NaN and infinity in a quantised row: NaN alone is lost, infinity becomes the largest bf16', async () => {
  const values = new Uint16Array(128).fill(toBf16(2));
  values[3] = 0x7fc0;
  const withNan = dequantizeRows(device, quantizeRows(device, await device.tensor('bf16', [1, 128], values))).view();
  assert.equal(withNan[3], 0x7fc0);
  assert.equal(fromBf16(withNan[4] as number), 2);
  values[3] = 0xff80;
  const withInfinity = dequantizeRows(
    device,
    quantizeRows(device, await device.tensor('bf16', [1, 128], values)),
  ).view();
  assert.equal(withInfinity[3], 0xff7f);
});

test('quantizeRows() names a shape that does not fit', () => {
  const x = device.empty('bf16', [4, 12]);
  assert.throws(() => quantizeRows(device, x), { code: 'WL_INVALID_ARGUMENT', message: /x\.shape.*\[4, 12\]/ });
  const out = { data: device.empty('fp8e4m3', [4, 16]), scales: device.empty('f32', [4, 2]) };
  assert.throws(() => quantizeRows(device, device.empty('bf16', [4, 16]), { out }), { message: /out\.scales\.shape/ });
});

/** The order of the kernel's sum: four lanes, even then odd elements of each eight, added as (0 + 2) + (1 + 3). */
function dotInLanes(x: Uint16Array, w: Uint16Array): number {
  const lanes = [0, 0, 0, 0];
  for (let at = 0; at < x.length; at += 8) {
    for (const odd of [0, 1]) {
      for (let lane = 0; lane < 4; lane++) {
        const index = at + 2 * lane + odd;
        const product = f(fromBf16(x[index] as number) * fromBf16(w[index] as number));
        lanes[lane] = f((lanes[lane] as number) + product);
      }
    }
  }
  const [a, b, c, d] = lanes as [number, number, number, number];
  return f(f(a + c) + f(b + d));
}

for (const [m, n, k] of [
  [0, 4, 8],
  [1, 1, 8],
  [3, 5, 16],
  [7, 6, 264],
  [4, 9, 0],
  [2, 16, 40],
] as const) {
  test(`matmul [${m}, ${k}] x [${n}, ${k}] is the plain sum, bit for bit`, async () => {
    const x = bf16Values((m + 3) * k, 1);
    const w = bf16Values(n * k, 2);
    const rows = Int32Array.from({ length: m }, (_, index) => (index * 5 + 2) % (m + 3));
    const xTensor = await device.tensor('bf16', [m + 3, k], x);
    const wTensor = await device.tensor('bf16', [n, k], w);
    const rowTensor = await device.tensor('i32', [m], rows);
    for (const gathered of [false, true]) {
      const expected = Array.from({ length: m * n }, (_, index) => {
        const i = Math.floor(index / n);
        const row = gathered ? (rows[i] as number) : i;
        const j = index % n;
        return dotInLanes(x.subarray(row * k, (row + 1) * k), w.subarray(j * k, (j + 1) * k));
      });
      const address = gathered ? rowTensor.address : 0;
      const f32 = device.empty('f32', [m * n + 1]);
      f32.view().fill(7);
      kernels.matmul(f32.address, xTensor.address, address, wTensor.address, m, n, k);
      assert.deepEqual([...f32.view()], [...expected, 7]);
    }
  });
}

test('matmul: more columns than a block of weights holds, NaN and infinity as in arithmetic', async () => {
  const [n, k] = [70, 4096];
  const x = bf16Values(k, 3);
  const w = bf16Values(n * k, 4);
  w[k] = 0x7fc0;
  w[2 * k] = 0x7f80;
  const xTensor = await device.tensor('bf16', [1, k], x);
  const wTensor = await device.tensor('bf16', [n, k], w);
  const out = device.empty('f32', [n]);
  kernels.matmul(out.address, xTensor.address, 0, wTensor.address, 1, n, k);
  const expected = Array.from({ length: n }, (_, j) => dotInLanes(x, w.subarray(j * k, (j + 1) * k)));
  assert.deepEqual([...out.view()], expected);
  assert.ok(Number.isNaN(expected[1]));
  assert.ok(!Number.isFinite(expected[2]));
});

test('swiglu is off by hardly more than a bf16 rounding over all that exp reaches, so exp has nearly all bits', async () => {
  const width = 400_000;
  const x = new Float32Array(2 * width).fill(1);
  for (let index = 0; index < width; index++) x[index] = -88 + (index * 192) / width;
  const input = await device.tensor('f32', [1, 2 * width], x);
  const out = device.empty('bf16', [1, width]);
  kernels.swiglu(out.address, input.address, 1, width);
  let worst = 0;
  for (const [index, pattern] of out.view().entries()) {
    const gate = x[index] as number;
    const expected = gate / (1 + Math.exp(-gate));
    if (expected === 0) assert.equal(fromBf16(pattern), 0);
    else worst = Math.max(worst, Math.abs(fromBf16(pattern) - expected) / bf16Step(Math.abs(expected)));
  }
  // Half a step is the rounding's; an f32 has 16 bits more, so 2^-13 of a step is 8 of its units.
  assert.ok(worst <= 0.5 + 2 ** -13, `${worst} steps`);
});

/** The distance of bf16 numbers near a positive normal value. */
function bf16Step(value: number): number {
  return 2 ** (Math.floor(Math.log2(value)) - 7);
}

test('swiglu is silu(gate) * up within a bf16 rounding, special values as in arithmetic', async () => {
  const [rows, width] = [5, 24];
  const next = randomNumbers(9);
  const x = Float32Array.from({ length: rows * 2 * width }, () => next() * 20);
  const gates = [0, -0, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -200, 200, 1e-40];
  x.set(gates, 0);
  x.fill(1, width, width + gates.length);
  const input = await device.tensor('f32', [rows, 2 * width], x);
  const out = device.empty('bf16', [rows, width]);
  kernels.swiglu(out.address, input.address, rows, width);
  for (const [index, pattern] of out.view().entries()) {
    const row = Math.floor(index / width);
    const gate = x[row * 2 * width + (index % width)] as number;
    const up = x[row * 2 * width + width + (index % width)] as number;
    const expected = (gate / (1 + Math.exp(-gate))) * up;
    const actual = fromBf16(pattern);
    if (!Number.isFinite(expected)) assert.equal(actual, expected);
    else assert.ok(Math.abs(actual - expected) <= Math.abs(expected) * 2 ** -7.9 + 1e-37, `${gate}, ${up}: ${actual}`);
  }
});

test('accumulateRows and roundRows are the plain sums, bit for bit', async () => {
  const [count, columns] = [6, 24];
  const next = randomNumbers(11);
  const x = Float32Array.from({ length: count * columns }, () => next() * 3);
  x.set([Number.NaN, Number.POSITIVE_INFINITY, -0, 1e-45, 3.4e38, f(1 + 2 ** -8), f(1 + 3 * 2 ** -8)]);
  const rows = Int32Array.from([2, 0, 2, 1, 2, 0]);
  const weights = Float32Array.from({ length: count }, () => next());
  weights[0] = 1;
  const start = Float32Array.from({ length: 3 * columns }, () => next());
  const expected = Float32Array.from(start);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < columns; j++) {
      const at = (rows[i] as number) * columns + j;
      expected[at] = f((expected[at] as number) + f((weights[i] as number) * (x[i * columns + j] as number)));
    }
  }
  const y = await device.tensor('f32', [3, columns], start);
  const xTensor = await device.tensor('f32', [count, columns], x);
  const rowTensor = await device.tensor('i32', [count], rows);
  const weightTensor = await device.tensor('f32', [count], weights);
  kernels.accumulateRows(y.address, rowTensor.address, weightTensor.address, xTensor.address, count, columns);
  assert.deepEqual([...y.view()], [...expected]);
  const out = device.empty('bf16', [count, columns]);
  kernels.roundRows(out.address, xTensor.address, weightTensor.address, count, columns);
  assert.deepEqual(
    [...out.view()],
    Array.from(x, (value, index) => toBf16(f((weights[Math.floor(index / columns)] as number) * value))),
  );
  kernels.roundRows(out.address, xTensor.address, 0, count, columns);
  assert.deepEqual([...out.view()], [...x].map(toBf16));
});

test('crc32c() gives the published values, whole or in pieces', () => {
  using tensor = device.empty('u8', [4096]);
  const bytes = tensor.view();
  const crc = (text: Uint8Array): number => {
    bytes.set(text);
    return kernels.crc32c(0, tensor.address, text.length) >>> 0;
  };
  // RFC 3720, B.4, read as little-endian words, and the check value of the catalogue of CRCs.
  assert.equal(crc(new Uint8Array(32)), 0x8a9136aa);
  assert.equal(crc(new Uint8Array(32).fill(0xff)), 0x62a8ab43);
  assert.equal(crc(Uint8Array.from({ length: 32 }, (_, index) => index)), 0x46dd794e);
  assert.equal(crc(Buffer.from('123456789')), 0xe3069283);
  bytes.set(Uint8Array.from({ length: 4096 }, (_, index) => index * 7));
  const whole = kernels.crc32c(0, tensor.address, 4096) >>> 0;
  for (const cut of [0, 1, 15, 16, 17, 1000, 4095]) {
    const first = kernels.crc32c(0, tensor.address, cut);
    assert.equal(kernels.crc32c(first, tensor.address + cut, 4096 - cut) >>> 0, whole);
  }
});

test('quantizeRows() without its device or its rows says which is missing', () => {
  const rows = device.empty('f32', [1, 8]);
  assert.throws(() => quantizeRows(rows as never, undefined as never), {
    code: 'WL_INVALID_ARGUMENT',
    message: /device/,
  });
  assert.throws(() => quantizeRows(device, undefined as never), { code: 'WL_INVALID_ARGUMENT', message: /Invalid x/ });
  assert.throws(() => quantizeRows(device, rows as never), { code: 'WL_INVALID_ARGUMENT', message: /a bf16 tensor/ });
  rows.close();
});
