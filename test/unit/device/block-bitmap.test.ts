// The kernel that finds blocks which are not zero, against the obvious loop.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, dtypes, fromBf16, toBf16 } from 'weftline';
import { reductionFormats } from '#lib/abi/element-formats.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { testSeed } from '../../support/seed.ts';

const device = await CpuDevice.create();

for (const dtype of ['f32', 'bf16', 'i32'] as const) {
  test(`blocks of ${dtype} are marked, and those that do not count become +0`, () => {
    const next = seededRandom(testSeed());
    const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)]!;
    const encode = (value: number): number => {
      if (dtype === 'bf16') return toBf16(value);
      return dtype === 'i32' ? Math.max(-(2 ** 31), Math.trunc(Number.isNaN(value) ? 5 : value)) : Math.fround(value);
    };
    const value = dtype === 'bf16' ? fromBf16 : (bits: number): number => bits;
    const { bytes: size } = dtypes[dtype];
    for (let round = 0; round < 120; round++) {
      const blockSize = pick([64, 128, 256, 1024]);
      const count = pick([0, 1, 63, 64, 65, 255, 257, Math.floor(next() * 5000)]);
      const threshold = pick([0, 0, 1, 2.5, 1e-40, 3e38]);
      const inPlace = next() < 0.5;
      using input = device.empty(dtype, [count]);
      using apart = device.empty(dtype, [count]);
      const blocks = Math.ceil(count / blockSize);
      using bitmap = device.allocate(blocks);
      const view = input.view() as Float32Array;
      view.fill(0);
      const kinds = [-0, 1, -1, 2.5, -2.5, 2.6, 1e-41, NaN, Infinity, -Infinity, -(2 ** 31)];
      for (let some = count === 0 ? 0 : Math.floor(next() * 8); some > 0; some--) {
        view[Math.floor(next() * count)] = encode(pick(kinds));
      }
      const before = Float64Array.from(view, value);
      const bits = Buffer.from(Buffer.from(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength));
      const output = inPlace ? input : apart;
      if (!inPlace) (apart.view() as Float32Array).fill(7);
      const [format, limit] = [reductionFormats[dtype], dtype === 'i32' ? threshold : Math.fround(threshold)];
      const found = device.kernels.markBlocks(
        input.address,
        input.bytes,
        blockSize * size,
        format,
        threshold,
        bitmap.address,
        output.address,
      );
      const got = device.hostView('u8', bitmap.address, blocks);
      const about = `${dtype}, ${count} elements, blocks of ${blockSize}, threshold ${threshold}, round ${round}`;
      let expected = 0;
      for (let block = 0; block < blocks; block++) {
        const [from, end] = [block * blockSize, Math.min(count, (block + 1) * blockSize)];
        const counts = before.subarray(from, end).some((one) => !(Math.abs(one) <= limit));
        if (counts) expected++;
        assert.equal(got[block], counts ? 0 : 1, `block ${block} of ${about}`);
        const now = device.hostView('u8', output.address + from * size, (end - from) * size);
        if (!counts)
          assert.ok(
            now.every((byte) => byte === 0),
            `block ${block} of ${about}`,
          );
        else if (inPlace) assert.deepEqual(Buffer.from(now), bits.subarray(from * size, end * size), about);
      }
      assert.equal(found, expected, about);
    }
  });
}
