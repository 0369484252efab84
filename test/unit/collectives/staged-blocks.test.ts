// Tensors of a device in sparse all-reduces: blocks that go out and sums that come in while the device's work is late.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice, toBf16 } from 'weftline';
import { referenceSparseSum } from 'weftline/reference';
import { BlockCompletions } from '#lib/collectives/sparse/block-reducer.js';
import { markLimit } from '#lib/collectives/sparse/cuda-work.js';
import { noCall, type SparseCall } from '#lib/collectives/sparse/sparse-call.js';
import { StagedBlocks } from '#lib/collectives/sparse/staged-blocks.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import type { Storage } from '#lib/device/tensor.js';
import { PretendedBlockWork } from '../../support/pretended-block-work.ts';
import { testSeed } from '../../support/seed.ts';
import { withCode } from '../../support/with-code.ts';
import type { ReducedDType } from '#lib/collectives/collective-call.js';

const device = await CpuDevice.create();
const shape = { blockSize: 64, lanes: 5, slots: 3 };
const elementBytes = { f32: 4, i32: 4, bf16: 2 } as const;

interface Staged {
  readonly work: PretendedBlockWork;
  readonly blocks: StagedBlocks;
  readonly messages: Storage;
}

function staged(next: () => number): Staged {
  const work = new PretendedBlockWork(device, shape, next);
  const messages = device.allocate(64 << 10);
  return { work, messages, blocks: new StagedBlocks(work, { shape, host: device, messages, maxElementBytes: 4 }) };
}

for (const dtype of ['f32', 'bf16', 'i32'] as const satisfies readonly ReducedDType[]) {
  for (const inPlace of [true, false]) {
    test(`blocks of ${dtype} that count go out as they are, and sums get to their places; in place: ${inPlace}`, async () => {
      const next = seededRandom(testSeed());
      const { work, blocks, messages } = staged(next);
      const place = messages.address;
      for (const [count, density, isDense] of [
        [0, 1, false],
        [1, 1, false],
        [1, 1, true],
        [10_000, 0, false],
        [10_007, 0.1, false],
        [10_007, 0.5, true],
        [100_001, 1, false],
        [60_000, 0.3, false],
      ] as const) {
        using input = device.empty(dtype, [count]);
        using apart = device.empty(dtype, [count]);
        const output = inPlace ? input : apart;
        const values = input.view().fill(0);
        (apart.view() as Float32Array).fill(9);
        const blockCount = Math.ceil(count / 64);
        for (let block = 0; block < blockCount; block++) {
          if (next() < density)
            values.fill(dtype === 'bf16' ? toBf16(block + 1) : block + 1, block * 64, block * 64 + 64);
        }
        const given = values.slice();
        const bytes = elementBytes[dtype];
        const addresses = { input: input.address, output: output.address };
        const call: SparseCall = {
          ...noCall,
          dtype,
          elementBytes: bytes,
          count,
          ...addresses,
          isDense,
          timeoutMs: 60_000,
        };
        blocks.reserve(count);
        blocks.begin(call);
        while (!blocks.isMarked());
        const own = Array.from({ length: blockCount }, (_, block) => block).filter((block) => blocks.has(block));
        assert.equal(blocks.ownBlocks, own.length);
        for (const block of own) {
          const following = own.find((other) => other > block && other % 15 === block % 15);
          if (following !== undefined && count < 20_000) assert.equal(blocks.next(block), following);
          while (!blocks.isReady(block));
          blocks.copyOut(place, block, 1);
          const got = device.hostView('u8', place, 64 * bytes);
          const expected = new Uint8Array(64 * bytes);
          expected.set(new Uint8Array(given.buffer, block * 64 * bytes, Math.min(64, count - block * 64) * bytes));
          assert.deepEqual(Buffer.from(got), Buffer.from(expected), `block ${block}`);
          while (!blocks.hasRoom(1));
          // The sum is what it was.
          blocks.copyIn(place, block, 1);
          got.fill(0xff);
        }
        assert.equal(blocks.finish(), true);
        const expected = isDense ? given : referenceSparseSum(dtype, [given], { blockSize: 64 });
        assert.deepEqual(Buffer.from(output.view().slice().buffer), Buffer.from(expected.buffer));
      }
      await blocks.close();
      assert.equal(work.pieces, 0);
      messages[Symbol.dispose]();
    });
  }
}

test('a flag goes up behind the sums that it tells of, and several parts at once', async () => {
  const { work, blocks, messages } = staged(seededRandom(testSeed()));
  using tensor = device.empty('f32', [64 * 1000]);
  using flag = device.empty('i32', [1]);
  flag.view()[0] = 5;
  tensor.view().fill(1);
  const addresses = { input: tensor.address, output: tensor.address };
  blocks.reserve(64_000);
  blocks.begin({ ...noCall, count: 64_000, ...addresses, timeoutMs: 60_000 });
  while (!blocks.isMarked());
  const completions = new BlockCompletions(blocks.flagAt(flag.address), { blocks: 1000, blocksPerPart: 30 });
  let told = 0;
  work.onTell = (value) => {
    told++;
    const end = Math.min(1000, (value - 5) * 30) * 64;
    assert.ok(
      tensor
        .view()
        .subarray(0, end)
        .every((one) => one === 3),
    );
  };
  const sums = device.hostView('f32', messages.address, 64 * 5);
  sums.fill(3);
  for (let block = 0; block < 1000; block += 5) {
    while (!blocks.hasRoom(5));
    blocks.copyIn(messages.address, block, 5);
    if (block % 7 === 0) completions.processCompletions(block + 5);
  }
  assert.equal(completions.processCompletions(1000), true);
  assert.equal(flag.view()[0], 5 + Math.ceil(1000 / 30));
  assert.ok(told > 1 && told < 34, `${told} additions`);
  await blocks.close();
});

test('a device that does not come to it fails the call at its deadline', async () => {
  const { blocks } = staged(() => 0);
  using tensor = device.empty('f32', [64]);
  tensor.view().fill(1);
  blocks.reserve(64);
  blocks.begin({ ...noCall, count: 64, input: tensor.address, output: tensor.address, timeoutMs: 1 });
  const begin = performance.now();
  assert.throws(() => {
    while (!blocks.isMarked()) assert.ok(performance.now() - begin < 60_000);
  }, withCode('WL_TIMEOUT'));
});

test('thresholds as kernels compare them', () => {
  assert.equal(markLimit('f32', 0), 0);
  assert.equal(markLimit('f32', 1), 0x3f800000);
  assert.equal(markLimit('bf16', 3.5), 0x40600000);
  assert.equal(markLimit('f32', 1e300), 0x7f800000);
  assert.equal(markLimit('i32', 3.5), 3);
  assert.equal(markLimit('i32', 1e300), 2 ** 32 - 1);
});
