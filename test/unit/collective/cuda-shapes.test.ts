// How many blocks, warps and bytes the kernels that move rows take, and what a measurement tries in place of that.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { kernelFolder } from '#lib/device/cuda/jit/kernel-text.js';
import { BARRIER_BYTES, gatherShape, sendingShape } from '#lib/collective/cuda-shapes.js';
import { sweptShapes } from '#lib/programs/bench/ep/cuda/swept-shapes.js';

/** The bound that epCombine is compiled with on one host. */
function mostCombineThreads(): number {
  const text = readFileSync(join(kernelFolder(), 'ep-combine.cu'), 'utf8');
  return Number(/constexpr u32 mostThreads = hosts \? \d+ : (\d+);/.exec(text)?.[1]);
}

/** Of a block of an H200, less barriers and what kernels declare themselves. */
const ROOM = 227 * 1024 - 1024 - 4096;
const BF16_ROW = 7168 * 2;
const BYTES_OF_BARRIER = 8;

test('with 4 ranks as measured: 12 blocks of 2 warps with whole bf16 rows', () => {
  const { grid, rowWarps, partBytes, block } = sendingShape(ROOM, BF16_ROW, { sms: 16, ranks: 4, topk: 8 });
  assert.deepEqual({ grid, rowWarps, partBytes, block }, { grid: 12, rowWarps: 2, partBytes: BF16_ROW, block: 512 });
});

test('with 2 ranks as measured: 8 warps of 14 blocks move rows or, if they are smaller, 6 of 16', () => {
  const config = { sms: 16, ranks: 2, topk: 8 };
  const bf16 = sendingShape(ROOM, BF16_ROW, config);
  assert.deepEqual([bf16.grid, bf16.rowWarps, bf16.partBytes], [14, 8, BF16_ROW]);
  const fp8 = sendingShape(ROOM, BF16_ROW / 2, config);
  assert.deepEqual([fp8.grid, fp8.rowWarps, fp8.partBytes], [16, 6, BF16_ROW / 2]);
});

test('sums of 2 rows have 6 warps with half rows, those of 4 and 8 rows 7', () => {
  const of = (rows: number): number[] => {
    const { block, partBytes } = gatherShape(ROOM, BF16_ROW, { usual: rows, most: rows });
    return [block / 32, partBytes];
  };
  assert.deepEqual(
    [of(2), of(4), of(8)],
    [
      [6, BF16_ROW / 2],
      [7, BF16_ROW / 4],
      [7, BF16_ROW / 8],
    ],
  );
});

test('with fewer multiprocessors than fill the links all warps move rows', () => {
  const { grid, rowWarps, maxRowWarps } = sendingShape(ROOM, BF16_ROW, { sms: 8, ranks: 4, topk: 8 });
  assert.equal(grid, 8);
  assert.equal(rowWarps, maxRowWarps);
});

test('a shape that is tried replaces the rule, as far as shared memory allows', () => {
  const config = { sms: 16, ranks: 2, topk: 8 };
  const few = sendingShape(ROOM, BF16_ROW, config, { blocks: 16, warps: 3, mostPartBytes: 8192, stages: 1 });
  assert.deepEqual([few.grid, few.rowWarps, few.partBytes], [16, 3, 7168]);
  const many = sendingShape(20_000, BF16_ROW, config, { blocks: 16, warps: 12, mostPartBytes: 8192, stages: 1 });
  assert.deepEqual([many.rowWarps, many.maxRowWarps], [2, 2]);
  const small = sendingShape(20_000, BF16_ROW, config, { blocks: 16, warps: 12, mostPartBytes: 2048, stages: 4 });
  assert.deepEqual([small.rowWarps, small.stages, small.partBytes], [2, 4, 2048]);
});

test('what bench ep --shapes tries fits: first the rules, then shapes with at most as many blocks as it may have', () => {
  const shapes = sweptShapes(16);
  assert.deepEqual(shapes[0], {});
  for (const { sending, gather } of shapes.slice(1)) {
    const { blocks } = sending ?? gather!;
    assert.ok(blocks <= 16);
    const room = ROOM + 1024;
    if (gather) {
      const { sharedBytes } = gatherShape(ROOM, BF16_ROW, { usual: 8, most: 8, ...gather });
      assert.ok(sharedBytes <= room, JSON.stringify(gather));
      assert.ok(gather.warps * 32 <= mostCombineThreads());
      assert.ok(gather.stages * gather.warps * BYTES_OF_BARRIER <= BARRIER_BYTES);
    } else {
      const shape = sendingShape(ROOM, BF16_ROW, { sms: 16, ranks: 2, topk: 8 }, sending);
      assert.ok(shape.sharedBytes <= room);
      assert.ok(shape.stages * shape.maxRowWarps * BYTES_OF_BARRIER <= BARRIER_BYTES);
    }
  }
});
