import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, fromBf16, toBf16 } from 'weftline';
import { CpuExperts } from '#lib/programs/moe/cpu-moe-engine.js';
import { referenceExpert, referenceMoeBlock } from '#lib/programs/moe/example-block.js';

const device = await CpuDevice.create();
const shape = { hidden: 40, intermediate: 24, topk: 3, experts: 5 };
const { hidden, intermediate, topk, experts } = shape;

let state = 1;
function randomBf16(count: number, scale: number): Uint16Array {
  return Uint16Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return toBf16((state / 2 ** 31) * scale);
  });
}

const gateUp = randomBf16(experts * 2 * intermediate * hidden, 0.4);
const down = randomBf16(experts * hidden * intermediate, 0.4);
const local = new CpuExperts(device, {
  gateUp: await device.tensor('bf16', [experts, 2 * intermediate, hidden], gateUp),
  down: await device.tensor('bf16', [experts, hidden, intermediate], down),
});

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

for (const dtype of ['i32', 'i64'] as const) {
  test(`forwardTokens() is the reference within bf16 roundings (${dtype} ids, more rows than a block)`, async () => {
    const rows = 300;
    const x = randomBf16(rows * hidden, 1);
    // Expert 4 gets none; some choices and one whole row are empty.
    const ids = Array.from({ length: rows * topk }, (_, at) => (at < topk || at % 7 === 0 ? -1 : (at * 3) % 4));
    const weights = Float32Array.from(ids, (id, at) => (id === -1 ? 0 : 1 / (1 + (at % 5))));
    const expected = referenceMoeBlock({ x, topkIdx: ids, topkWeights: weights, gateUp, down }, shape);
    const xTensor = await device.tensor('bf16', [rows, hidden], x);
    const topkIdx =
      dtype === 'i32'
        ? await device.tensor('i32', [rows, topk], Int32Array.from(ids))
        : await device.tensor('i64', [rows, topk], BigInt64Array.from(ids, BigInt));
    const topkWeights = await device.tensor('f32', [rows, topk], weights);
    const out = device.empty('bf16', [rows, hidden]);
    local.forwardTokens({ x: xTensor, topkIdx, topkWeights }, out);
    assert.ok(error(out.view(), expected) < 4e-3, `${error(out.view(), expected)}`);
    assert.deepEqual(new Set(out.view().subarray(0, hidden)), new Set([0]));
    const values = await out.toHost();
    // A second call with fewer rows, in place: each row's result does not depend on the others.
    const some = { x: xTensor.slice(0, 9), topkIdx: topkIdx.slice(0, 9), topkWeights: topkWeights.slice(0, 9) };
    local.forwardTokens(some, some.x);
    assert.deepEqual([...some.x.view()], [...values.subarray(0, 9 * hidden)]);
  });
}

test('forwardExperts() gives every row of every expert, weighted or not, in place too', async () => {
  const rowsPerExpert = [3, 0, 140, 1, 2];
  const rows = rowsPerExpert.reduce((sum, count) => sum + count);
  const x = randomBf16(rows * hidden, 1);
  const weights = Float32Array.from({ length: rows }, (_, row) => (row % 3) - 1);
  const expertOf = rowsPerExpert.flatMap((count, expert) => Array.from({ length: count }, () => expert));
  const expected = expertOf.flatMap((expert, row) =>
    referenceExpert(
      Array.from(x.subarray(row * hidden, (row + 1) * hidden), fromBf16),
      expert,
      { gateUp, down },
      shape,
    ),
  );
  const xTensor = await device.tensor('bf16', [rows, hidden], x);
  const out = device.empty('bf16', [rows, hidden]);
  local.forwardExperts({ x: xTensor, rowsPerExpert }, out);
  assert.ok(error(out.view(), expected) < 4e-3);
  const weightTensor = await device.tensor('f32', [rows], weights);
  local.forwardExperts({ x: xTensor, rowsPerExpert, weights: weightTensor }, xTensor);
  const weighted = expected.map((value, index) => value * (weights[Math.floor(index / hidden)] as number));
  assert.ok(error(xTensor.view(), weighted) < 4e-3);
});

test('no rows at all are no trouble', async () => {
  const none = {
    x: device.empty('bf16', [0, hidden]),
    topkIdx: device.empty('i64', [0, topk]),
    topkWeights: device.empty('f32', [0, topk]),
  };
  local.forwardTokens(none, none.x);
  local.forwardExperts({ x: none.x, rowsPerExpert: [0, 0, 0, 0, 0] }, none.x);
});

test('CpuExperts names what does not fit', async () => {
  const topkIdx = await device.tensor('i32', [1, 1], Int32Array.of(experts));
  const topkWeights = await device.tensor('f32', [1, 1], Float32Array.of(1));
  const x = device.empty('bf16', [1, hidden]);
  assert.throws(() => local.forwardTokens({ x, topkIdx, topkWeights }, x), {
    code: 'WL_INVALID_ARGUMENT',
    message: /topkIdx: expected -1 to 4, got 5/,
  });
  const good = device.empty('bf16', [2, 16, 8]);
  assert.throws(() => new CpuExperts(device, { gateUp: good, down: device.empty('bf16', [3, 8, 8]) }), {
    message: /down\.shape/,
  });
  assert.throws(() => new CpuExperts(device, { gateUp: good, down: device.empty('bf16', [2, 8, 4]) }), {
    message: /gateUp\.shape/,
  });
});
