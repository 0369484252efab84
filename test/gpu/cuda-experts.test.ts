// What a GPU computes for the experts of a block, against the reference and against the CPU's kernels.
import assert from 'node:assert/strict';
import { CpuDevice, type CudaDevice, fromBf16, readSettings, type Settings, toBf16 } from 'weftline';
import { dequantizeRows, quantizeRows } from 'weftline/ep';
import { CudaFp8Rows } from '#lib/device/cuda/fp8-rows.js';
import type { LocalExperts } from '#lib/programs/moe/moe-engine.js';
import { openGroupedProduct, RowGroups } from '#lib/programs/moe/cuda-moe-engine.js';
import { openMoeEngine } from '#lib/programs/moe/moe-job.js';
import { referenceExpert, referenceMoeBlock } from '#lib/programs/moe/example-block.js';
import { findCublas } from '#lib/native/cublas.js';
import { gpuTest } from './support/gpu.js';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

let state = 1;
function draw(): number {
  state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
  return state / 2 ** 31;
}

function randomBf16(count: number, scale: number): Uint16Array {
  return Uint16Array.from({ length: count }, () => toBf16(draw() * scale));
}

function smallIntegers(count: number): Int8Array {
  return Int8Array.from({ length: count }, () => Math.round(draw() * 7));
}

/** ||actual - expected|| / ||expected|| */
function error(actual: Uint16Array, expected: ArrayLike<number>): number {
  let difference = 0;
  let size = 0;
  for (const [index, pattern] of actual.entries()) {
    const wanted = expected[index] as number;
    difference += (fromBf16(pattern) - wanted) ** 2;
    size += wanted ** 2;
  }
  return Math.sqrt(difference / size);
}

const products: readonly Settings['expertProduct'][] =
  findCublas() === undefined ? ['kernel'] : ['kernel', 'cublas', 'auto'];

/** Sums of small whole numbers, which f32 holds exactly in any order. */
async function productIsExact(device: CudaDevice, expertProduct: Settings['expertProduct']): Promise<void> {
  using product = await openGroupedProduct(device, readSettings({ expertProduct }));
  const { moeStoreWords } = await device.loadKernels(kernelFiles.moeExperts);
  const rows = [3, 0, 140, 1, 64, 65, 0];
  using groups = new RowGroups(device, rows.length, moeStoreWords.plan({ grid: 1, block: 256 }));
  groups.set(rows);
  const groupOf = rows.flatMap((count, group) => Array.from({ length: count }, () => group));
  for (const [n, k] of [
    [8, 8],
    [128, 64],
    [136, 72],
    [392, 200],
    [120, 320],
  ] as const) {
    const x = smallIntegers(groups.total * k);
    const w = smallIntegers(rows.length * n * k);
    using xTensor = await device.tensor('bf16', [groups.total, k], Uint16Array.from(x, toBf16));
    using wTensor = await device.tensor('bf16', [rows.length, n, k], Uint16Array.from(w, toBf16));
    // One row more, which nobody may write.
    using out = await device.tensor('f32', [groups.total + 1, n], new Float32Array((groups.total + 1) * n).fill(0.5));
    product.multiply({ x: xTensor.address, w: wTensor.address, out: out.address, n, k }, groups);
    const expected = new Float32Array((groups.total + 1) * n).fill(0.5);
    for (const [row, group] of groupOf.entries()) {
      for (let column = 0; column < n; column++) {
        let sum = 0;
        for (let at = 0; at < k; at++) {
          sum += (x[row * k + at] as number) * (w[(group * n + column) * k + at] as number);
        }
        expected[row * n + column] = sum;
      }
    }
    assert.deepEqual(
      Buffer.compare(Buffer.from((await out.toHost()).buffer), Buffer.from(expected.buffer)),
      0,
      `${n} ${k}`,
    );
  }
}

const shape = { hidden: 40, intermediate: 24, topk: 3, experts: 5 };
const { hidden, intermediate, topk, experts } = shape;
const gateUp = randomBf16(experts * 2 * intermediate * hidden, 0.4);
const down = randomBf16(experts * hidden * intermediate, 0.4);

async function withExperts(
  device: CudaDevice,
  expertProduct: Settings['expertProduct'],
  use: (local: LocalExperts) => Promise<void>,
): Promise<void> {
  using engine = await openMoeEngine(device, readSettings({ expertProduct }));
  using local = engine.createExperts({
    gateUp: await device.tensor('bf16', [experts, 2 * intermediate, hidden], gateUp),
    down: await device.tensor('bf16', [experts, hidden, intermediate], down),
  });
  await use(local);
  await engine.finish();
}

function countIds(ids: readonly number[]): number[] {
  return Array.from({ length: experts }, (_, expert) => ids.filter((id) => id === expert).length);
}

for (const product of products) {
  gpuTest(`the grouped product by ${product} is exact on whole numbers, whatever the tails`, (device) =>
    productIsExact(device, product),
  );

  for (const dtype of ['i32', 'i64'] as const) {
    gpuTest(`forwardTokens() by ${product} is the reference within bf16 roundings (${dtype} ids)`, (device) =>
      withExperts(device, product, async (local) => {
        const rows = 700;
        const x = randomBf16(rows * hidden, 1);
        // Expert 4 gets none; some choices and one whole row are empty.
        const ids = Array.from({ length: rows * topk }, (_, at) => (at < topk || at % 7 === 0 ? -1 : (at * 3) % 4));
        const weights = Float32Array.from(ids, (id, at) => (id === -1 ? 0 : 1 / (1 + (at % 5))));
        const expected = referenceMoeBlock({ x, topkIdx: ids, topkWeights: weights, gateUp, down }, shape);
        using xTensor = await device.tensor('bf16', [rows, hidden], x);
        using topkIdx =
          dtype === 'i32'
            ? await device.tensor('i32', [rows, topk], Int32Array.from(ids))
            : await device.tensor('i64', [rows, topk], BigInt64Array.from(ids, BigInt));
        using topkWeights = await device.tensor('f32', [rows, topk], weights);
        using out = device.empty('bf16', [rows, hidden]);
        local.forwardTokens({ x: xTensor, topkIdx, topkWeights, rowsPerExpert: countIds(ids) }, out);
        const values = await out.toHost();
        assert.ok(error(values, expected) < 4e-3, `${error(values, expected)}`);
        assert.deepEqual(new Set(values.subarray(0, hidden)), new Set([0]));
        // Fewer rows, in place: with our kernel a row's result does not depend on the others.
        const some = xTensor.slice(0, 9);
        const input = { x: some, topkIdx: topkIdx.slice(0, 9), topkWeights: topkWeights.slice(0, 9) };
        local.forwardTokens({ ...input, rowsPerExpert: countIds(ids.slice(0, 9 * topk)) }, some);
        const again = await some.toHost();
        if (product === 'kernel') assert.deepEqual([...again], [...values.subarray(0, 9 * hidden)]);
        assert.ok(error(again, expected) < 4e-3);
      }),
    );
  }

  gpuTest(`forwardExperts() by ${product} gives every row of every expert, weighted or not, in place too`, (device) =>
    withExperts(device, product, async (local) => {
      const rowsPerExpert = [3, 0, 140, 1, 2];
      const rows = rowsPerExpert.reduce((sum, count) => sum + count);
      const x = randomBf16(rows * hidden, 1);
      const weights = Float32Array.from({ length: rows }, (_, row) => (row % 3) - 1);
      const expertOf = rowsPerExpert.flatMap((count, expert) => Array.from({ length: count }, () => expert));
      const expected = expertOf.flatMap((expert, row) => {
        const values = Array.from(x.subarray(row * hidden, (row + 1) * hidden), fromBf16);
        return referenceExpert(values, expert, { gateUp, down }, shape);
      });
      using xTensor = await device.tensor('bf16', [rows, hidden], x);
      using out = device.empty('bf16', [rows, hidden]);
      local.forwardExperts({ x: xTensor, rowsPerExpert }, out);
      assert.ok(error(await out.toHost(), expected) < 4e-3);
      using weightTensor = await device.tensor('f32', [rows], weights);
      local.forwardExperts({ x: xTensor, rowsPerExpert, weights: weightTensor }, xTensor);
      const weighted = expected.map((value, index) => value * (weights[Math.floor(index / hidden)] as number));
      assert.ok(error(await xTensor.toHost(), weighted) < 4e-3);
    }),
  );

  gpuTest(`no rows at all are no trouble to ${product}`, (device) =>
    withExperts(device, product, async (local) => {
      using x = device.empty('bf16', [0, hidden]);
      using topkIdx = device.empty('i64', [0, topk]);
      using topkWeights = device.empty('f32', [0, topk]);
      const rowsPerExpert = [0, 0, 0, 0, 0];
      local.forwardTokens({ x, topkIdx, topkWeights, rowsPerExpert }, x);
      local.forwardExperts({ x, rowsPerExpert }, x);
      // Rows that no expert here wants.
      using one = await device.tensor('bf16', [1, hidden], randomBf16(hidden, 1));
      using none = await device.tensor('i64', [1, topk], new BigInt64Array(topk).fill(-1n));
      using zero = await device.tensor('f32', [1, topk], new Float32Array(topk));
      local.forwardTokens({ x: one, topkIdx: none, topkWeights: zero, rowsPerExpert }, one);
      assert.ok((await one.toHost()).every((value) => value === 0));
    }),
  );
}

gpuTest('fp8 rows are those of the CPU device, bit for bit', async (device) => {
  const cpu = await CpuDevice.create();
  const rows = await CudaFp8Rows.create(device);
  for (const columns of [8, 128, 136, 7168]) {
    const count = 9;
    // All magnitudes, subnormal results, zeros, infinities and NaN of both signs.
    const x = Uint16Array.from({ length: count * columns }, (_, at) => (at * 40_503 + columns) & 0xffff);
    x.fill(0, columns, 2 * columns);
    using tame = await device.tensor('bf16', [count, columns], randomBf16(count * columns, 3));
    using wild = await device.tensor('bf16', [count, columns], x);
    for (const source of [tame, wild]) {
      for (const roundScale of [false, true]) {
        const values = await source.toHost();
        const expected = quantizeRows(cpu, await cpu.tensor('bf16', [count, columns], values), { roundScale });
        using data = device.empty('fp8e4m3', [count, columns]);
        using scales = device.empty('f32', [count, Math.ceil(columns / 128)]);
        rows.quantize(source, { data, scales }, { roundScale });
        assert.deepEqual(await scales.toHost(), await expected.scales.toHost());
        assert.deepEqual(await data.toHost(), await expected.data.toHost());
        using back = device.empty('bf16', [count, columns]);
        rows.dequantize({ data, scales }, back);
        assert.deepEqual(await back.toHost(), await dequantizeRows(cpu, expected).toHost());
      }
    }
  }
});
