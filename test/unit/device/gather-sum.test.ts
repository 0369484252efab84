// The sum of combine on CPUs, bit for bit against its specification: every kind of number, halves that round to even, NaN.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, type Tensor, toBf16 } from 'weftline';
import { elementFormats } from '#lib/abi/element-formats.js';
import { sumRows } from '#lib/reference/host-sums.js';
import { random } from '../../local/ranks/ep-case.ts';

const device = await CpuDevice.create();
const { kernels } = device;

const values = {
  'any bits': (next: () => number) => Math.floor(next() * 0x1_0000),
  // Sums of two or three of them often lie half-way between two bf16.
  'numbers of one exponent': (next: () => number) => 0x3f80 + Math.floor(next() * 0x80),
  'numbers of both signs': (next: () => number) => toBf16((next() - 0.5) * 2 ** Math.round(next() * 12)),
  'subnormal numbers': (next: () => number) => Math.floor(next() * 0x100) | (next() < 0.5 ? 0x8000 : 0),
  'large numbers and infinities': (next: () => number) => 0x7f00 + Math.floor(next() * 0x81),
} as const;

/** Rows of `width` bf16 patterns, where the kernel is to find them. */
async function upload(rows: readonly (readonly number[])[], width: number): Promise<Tensor<'bf16'>> {
  return device.tensor('bf16', [rows.length, width], Uint16Array.from(rows.flat()));
}

for (const [name, value] of Object.entries(values)) {
  test(`gatherSum of ${name} is the sum that the reference makes, bit for bit`, async () => {
    const next = random(name.length);
    for (const ranks of [1, 2, 3, 5, 9]) {
      for (const width of [8, 40, 64, 1032]) {
        // Token t has rows of t ranks, so that each number of rows occurs; token 0 has none.
        const tokens = ranks + 1;
        const rows = Array.from({ length: ranks * tokens }, () => Array.from({ length: width }, () => value(next)));
        using data = await upload(rows, width);
        using bases = await device.tensor(
          'i32',
          [ranks],
          Int32Array.from({ length: ranks }, (_, rank) => data.address + rank * tokens * width * 2),
        );
        const table = Int32Array.from({ length: tokens * ranks }, (_, cell) => {
          const [token, rank] = [Math.floor(cell / ranks), cell % ranks];
          return (rank + token) % ranks < token ? tokens - 1 - token : -1;
        });
        using rowTable = await device.tensor('i32', [tokens, ranks], table);
        using scratch = device.empty('i32', [ranks + 2]);
        using out = device.empty('bf16', [tokens, width]);
        out.view().fill(0x1234);
        const { bf16 } = elementFormats;
        const tables = [rowTable.address, 0, bases.address] as const;
        kernels.gatherSum(out.address, width * 2, tokens, ranks, ...tables, 0, 0, 0, scratch.address, bf16);
        for (let token = 0; token < tokens; token++) {
          const addends = Array.from({ length: ranks }, (_, rank) => ({ rank, row: table[token * ranks + rank]! }))
            .filter(({ row }) => row >= 0)
            .map(({ rank, row }) => rows[rank * tokens + row]!);
          const got = [...out.view().subarray(token * width, (token + 1) * width)];
          assert.deepEqual(got, sumRows(addends, width), `token ${token} of ${ranks} ranks, ${width} columns`);
        }
      }
    }
  });
}

test('sumRows may write to any of the rows that it adds', async () => {
  const next = random(5);
  for (const scattered of [0, 1]) {
    for (const count of [2, 3, 6]) {
      const width = 1032;
      for (let target = 0; target < count; target++) {
        const rows = Array.from({ length: count }, () => Array.from({ length: width }, () => values['any bits'](next)));
        using data = await upload(rows, width);
        const address = (row: number): number => data.address + row * width * 2;
        using sources = await device.tensor(
          'i32',
          [count],
          Int32Array.from(rows, (_, row) => address(row)),
        );
        kernels.sumRows(address(target), sources.address, count, width * 2, scattered, elementFormats.bf16);
        const got = [...data.view().subarray(target * width, (target + 1) * width)];
        assert.deepEqual(got, sumRows(rows, width), `${count} rows into number ${target}`);
      }
    }
  }
});
