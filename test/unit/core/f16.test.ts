import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, fromF16, toF16 } from 'weftline';
import { sumRows } from '#lib/reference/host-sums.js';
import { elementFormats } from '#lib/abi/element-formats.js';
import { random } from '../../local/ranks/ep-case.ts';

const patterns = Array.from({ length: 0x1_0000 }, (_, bits) => bits);
/** Every finite magnitude, in order; the index is the bit pattern. */
const magnitudes = patterns.slice(0, 0x7c00).map(fromF16);

/** The nearest of all f16, the even one of two that are as near. */
function nearest(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude >= 65_520) return sign | 0x7c00;
  let low = 0;
  let high = 0x7bff;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (magnitudes[middle]! <= magnitude) low = middle;
    else high = middle - 1;
  }
  // Beyond the largest f16 the next one would be 65536.
  const up = (magnitudes[low + 1] ?? 65_536) - magnitude;
  const down = magnitude - magnitudes[low]!;
  return sign | (up < down || (up === down && low % 2 === 1) ? low + 1 : low);
}

test('every f16 becomes a number and itself again; every NaN becomes 0x7e00', () => {
  for (const bits of patterns) {
    const isNan = (bits & 0x7fff) > 0x7c00;
    assert.equal(Number.isNaN(fromF16(bits)), isNan);
    assert.equal(toF16(fromF16(bits)), isNan ? 0x7e00 : bits);
  }
});

test('f32 becomes the nearest f16', () => {
  const next = random(11);
  const cell = new Float32Array(1);
  const bits = new Uint32Array(cell.buffer);
  for (let round = 0; round < 20_000; round++) {
    bits[0] = round % 2 === 0 ? Math.floor(next() * 2 ** 32) : 0;
    // Half of them near where f16 are: from the subnormal ones to beyond the largest, and exactly half-way.
    if (round % 2 === 1)
      cell[0] = (magnitudes[Math.floor(next() * 0x7c00)]! + 2 ** -25 * Math.floor(next() * 3)) * 1.0009765625;
    const value = cell[0]!;
    if (!Number.isNaN(value)) assert.equal(toF16(value), nearest(value), String(value));
  }
  for (let bits16 = 0; bits16 < 0x7bff; bits16++) {
    const halfWay = (magnitudes[bits16]! + magnitudes[bits16 + 1]!) / 2;
    assert.equal(toF16(halfWay), bits16 % 2 === 0 ? bits16 : bits16 + 1);
    assert.equal(toF16(-halfWay), 0x8000 | (bits16 % 2 === 0 ? bits16 : bits16 + 1));
  }
  assert.equal(toF16(65_519.99), 0x7bff);
  assert.equal(toF16(65_520), 0x7c00);
});

test('the CPU kernel sums rows of f16 and of f32 as the reference does, every bit pattern of f16 among them', async () => {
  await using device = await CpuDevice.create();
  const next = random(5);
  const any = (): number => Math.floor(next() * 0x1_0000);
  for (const dtype of ['f16', 'f32'] as const) {
    const of = dtype === 'f16' ? any : (): number => ((any() << 16) | any()) >>> 0;
    for (const count of [2, 3, 8]) {
      const rows = Array.from({ length: count }, (_, row) =>
        patterns.map((bits) => (row > 0 ? of() : dtype === 'f16' ? bits : (bits << 16) >>> 0)),
      );
      const values = (row: readonly number[]): never =>
        (dtype === 'f16' ? Uint16Array.from(row) : new Float32Array(Uint32Array.from(row).buffer)) as never;
      const tensors = await Promise.all(rows.map((row) => device.tensor(dtype, [row.length], values(row))));
      const sources = await device.tensor(
        'i32',
        [count],
        Int32Array.from(tensors, ({ address }) => address),
      );
      const out = device.empty(dtype, [patterns.length]);
      device.kernels.sumRows(out.address, sources.address, count, out.bytes, 1, elementFormats[dtype]);
      const got = out.view();
      const words = dtype === 'f16' ? got : new Uint32Array(got.buffer, got.byteOffset, got.length);
      assert.deepEqual([...words], sumRows(rows, patterns.length, dtype));
      for (const tensor of [...tensors, sources, out]) tensor.close();
    }
  }
});
