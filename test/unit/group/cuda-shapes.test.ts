// How many blocks, warps and bytes the kernels that move rows take, and what a measurement tries in place of that.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { kernelFolder } from '#lib/device/cuda/jit/cubin-cache.js';
import { BARRIER_BYTES, countedTokens, countingBlocks, gatherShape, sendingShape } from '#lib/group/cuda-shapes.js';
import { sweptShapes } from '#lib/programs/bench/ep/cuda-bench.js';

/** The constant of a header or a kernel file. */
function constantOf(file: string, name: string): number {
  const text = readFileSync(join(kernelFolder(), file), 'utf8');
  return Number(new RegExp(`constexpr u32 ${name} = (\\d+);`).exec(text)?.[1]);
}

const STAGES = constantOf('include/weftline/copy/stage-pair.cuh', 'stagesPerWarp');

test('host and kernels agree on the bytes of barriers', () => {
  const files = [
    'ep-dispatch.cu',
    'layer-combine.cu',
    'layer-dispatch.cu',
    'bench-copy.cu',
    'include/weftline/ep/token-rows.cuh',
  ];
  assert.deepEqual(
    files.map((file) => constantOf(file, 'barrierBytes')),
    files.map(() => BARRIER_BYTES),
  );
});

/** The bound that epCombine is compiled with. */
function mostCombineThreads(): number {
  return constantOf('ep-combine.cu', 'mostThreads');
}

/** Shared memory of a block of an H200, less barriers and what kernels declare themselves. */
const ROOM = 227 * 1024 - 1024 - 4096;
const BF16_ROW = 7168 * 2;
const BYTES_OF_BARRIER = 8;

test('so many blocks send as fill the links: the more ranks, the fewer, for less stays in a GPU', () => {
  const blocks = (ranks: number): number => sendingShape(ROOM, BF16_ROW, { sms: 24, ranks }).grid;
  assert.deepEqual([1, 2, 3, 4, 8].map(blocks), [24, 14, 11, 10, 8]);
  assert.equal(sendingShape(ROOM, BF16_ROW, { sms: 8, ranks: 2 }).grid, 8);
});

test('6 warps have two parts of at most 8 KiB each in hand', () => {
  for (const [rowBytes, part] of [
    [BF16_ROW, BF16_ROW / 2],
    [BF16_ROW / 2, BF16_ROW / 2],
  ] as const) {
    const { block, rowWarps, partBytes, maxRowWarps, sharedBytes } = sendingShape(ROOM, rowBytes, {
      sms: 16,
      ranks: 4,
    });
    assert.deepEqual([block, rowWarps, partBytes, maxRowWarps], [512, 6, part, 12]);
    assert.equal(sharedBytes, BARRIER_BYTES + 12 * STAGES * part);
  }
});

/** Warps, bytes of a part, bytes of a stage. */
function gathering(room: number, rowBytes: number, rows: number): number[] {
  const { block, partBytes, stageBytes } = gatherShape(room, rowBytes, { usual: rows, most: rows });
  return [block / 32, partBytes, stageBytes];
}

test('sums have 12 warps, with parts that begin at whole lines of memory unless rows have one part', () => {
  assert.deepEqual(gathering(ROOM, BF16_ROW, 2), [12, 3584, 7168]);
  assert.deepEqual(gathering(ROOM, BF16_ROW, 4), [12, 2048, 8192]);
  assert.deepEqual(gathering(ROOM, BF16_ROW, 8), [12, 1024, 8192]);
  assert.deepEqual(gathering(ROOM, 1008, 2), [12, 1008, 2016]);
});

test('where shared memory is small, fewer warps sum larger parts', () => {
  const small = 99 * 1024 - 1024 - 4096;
  assert.deepEqual(
    [2, 4, 8, 32].map((rows) => gathering(small, BF16_ROW, rows).slice(0, 2)),
    [
      [12, 1536],
      [8, 1280],
      [4, 1408],
      [4, 256],
    ],
  );
});

test('blocks that count keep a word per expert and a mask per token in shared memory', () => {
  const counted = { experts: 256, maskBytes: 4 };
  const each = countedTokens(ROOM, counted);
  assert.ok(each * 4 + 256 * 4 <= ROOM && (each + 5) * 4 + 256 * 4 > ROOM);
  assert.equal(countingBlocks(ROOM, { ...counted, tokens: each * 10 }), 10);
  assert.equal(countingBlocks(ROOM, { ...counted, tokens: each * 10 + 1 }), 11);
  assert.equal(countingBlocks(ROOM, { ...counted, experts: ROOM, tokens: 1 }), Number.POSITIVE_INFINITY);
});

test('a shape that is tried replaces the rule, as far as shared memory allows', () => {
  const config = { sms: 16, ranks: 2 };
  const few = sendingShape(ROOM, BF16_ROW, config, { blocks: 16, warps: 3, mostPartBytes: 8192 });
  assert.deepEqual([few.grid, few.rowWarps, few.partBytes], [16, 3, 7168]);
  const many = sendingShape(20_000, BF16_ROW, config, { blocks: 16, warps: 12, mostPartBytes: 8192 });
  assert.deepEqual([many.rowWarps, many.maxRowWarps], [1, 1]);
  const small = sendingShape(20_000, BF16_ROW, config, { blocks: 16, warps: 12, mostPartBytes: 2048 });
  assert.deepEqual([small.rowWarps, small.partBytes], [4, 2048]);
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
      assert.ok(STAGES * gather.warps * BYTES_OF_BARRIER <= BARRIER_BYTES);
    } else {
      const shape = sendingShape(ROOM, BF16_ROW, { sms: 16, ranks: 2 }, sending);
      assert.ok(shape.sharedBytes <= room);
      assert.ok(STAGES * shape.maxRowWarps * BYTES_OF_BARRIER <= BARRIER_BYTES);
    }
  }
});
