// What a launcher writes into its ring, and what it finds wrong.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  FRAGMENT_WORDS,
  fragmentWord,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from '#lib/abi/unpack.js';
import { wideAt } from '#lib/abi/layout.js';
import { RingWriter } from '#lib/unpack/ring-writer.js';
import { DescriptorBlock } from 'weftline/unpack';
import { blocksOf, type FragmentOf, randomList } from '../../support/fragment-lists.js';
import { seed } from '../../support/seed.js';

const bounce = { address: 1 << 20, bytes: 2 ** 31 };
const destination = { address: 2 ** 40, bytes: 2 ** 45 };

function written(slot: Uint32Array): FragmentOf[] {
  return Array.from({ length: slot[blockHeaderWord.count]! }, (_, index) => {
    const at = BLOCK_HEADER_WORDS + index * FRAGMENT_WORDS;
    return {
      sourceOffset: slot[at + fragmentWord.sourceOffset]!,
      length: slot[at + fragmentWord.length]!,
      destinationOffset: wideAt(slot, at + fragmentWord.destinationOffset),
    };
  });
}

function takeAndDivide(
  blocks: readonly DescriptorBlock[],
  warps: number,
): { slots: Uint32Array[]; writer: RingWriter } {
  const writer = new RingWriter('unpack', blocks.length);
  const slots = blocks.map(() => new Uint32Array(RING_SLOT_BYTES / 4));
  writer.take(blocks);
  writer.shareAmong(warps, false);
  for (const [block, slot] of slots.entries()) writer.writeBlock(block, slot);
  return { slots, writer };
}

/** Neighbouring pieces joined again. */
function joined(pieces: readonly FragmentOf[]): FragmentOf[] {
  const whole: FragmentOf[] = [];
  for (const piece of pieces) {
    const last = whole.at(-1);
    const follows =
      last !== undefined &&
      last.sourceOffset + last.length === piece.sourceOffset &&
      last.destinationOffset + last.length === piece.destinationOffset;
    if (follows) whole[whole.length - 1] = { ...last, length: last.length + piece.length };
    else whole.push(piece);
  }
  return whole;
}

test('fragments are cut for the warps, and their pieces are the fragments', () => {
  for (const [round, warps] of [1, 64, 512, 4224].entries()) {
    const list = randomList(seed + round, {
      count: 200,
      length: (random) => Math.floor(random() ** 6 * 2e6),
      gap: 100,
    });
    const { slots, writer } = takeAndDivide(blocksOf(list, bounce, destination), warps);
    const pieces = written(slots[0]!);
    // Two fragments that happen to be neighbours on both sides are joined by the test on both hands.
    assert.deepEqual(joined(pieces), joined(list.fragments.filter(({ length }) => length > 0)));
    assert.equal(writer.mostDescriptors, pieces.length);
    assert.equal(
      writer.totalBytes,
      list.fragments.reduce((sum, { length }) => sum + length, 0),
    );
    const longest = Math.max(...pieces.map(({ length }) => length));
    assert.ok(longest <= 1 << Math.ceil(Math.log2(Math.max(4096, writer.totalBytes / 2048))), String(longest));
  }
});

test('a block of very long fragments fits into its slot, cut as far as there is room', () => {
  for (const [count, length] of [
    [2048, 2_000_003],
    [1500, 2_800_003],
    [3, 1_400_000_000],
  ] as const) {
    const block = new DescriptorBlock().begin({ address: 0, bytes: 2 ** 33 }, destination);
    for (let index = 0; index < count; index++) block.add(index * length, length, length * (count - index));
    const pieces = written(takeAndDivide([block], 512).slots[0]!);
    assert.ok(pieces.length >= count && pieces.length <= RING_DESCRIPTORS, String(pieces.length));
    assert.equal(
      pieces.reduce((sum, piece) => sum + piece.length, 0),
      count * length,
    );
  }
});

test('pieces of a fragment that ends at 4 GiB have offsets of their own; one that goes on is refused', () => {
  const large = { address: 0, bytes: 2 ** 33 };
  const start = 2 ** 32 - 100_000;
  const block = new DescriptorBlock().begin(large, destination).add(start, 100_000, 7);
  const pieces = written(takeAndDivide([block], 512).slots[0]!);
  assert.ok(pieces.length > 1);
  assert.deepEqual(joined(pieces), [{ sourceOffset: start, length: 100_000, destinationOffset: 7 }]);
  for (const direction of ['unpack', 'pack'] as const) {
    for (const others of [0, 1]) {
      block.begin(large, destination);
      for (let index = 0; index < others; index++) block.add(index, 1, index);
      block.add(start, 100_001, 7);
      assert.throws(() => new RingWriter(direction, 1).take([block]), {
        code: 'WL_INVALID_ARGUMENT',
        details: { block: 0, descriptor: others, side: 'source', offset: start, length: 100_001, bytes: 2 ** 32 },
      });
    }
  }
});

test('few long fragments are cut shorter than many', () => {
  const few = new DescriptorBlock().begin(bounce, destination).add(0, 1 << 19, 0);
  assert.equal(written(takeAndDivide([few], 512).slots[0]!).length, 512);
  const many = new DescriptorBlock().begin(bounce, destination).add(0, 1 << 23, 0);
  assert.equal(written(takeAndDivide([many], 512).slots[0]!).length, 2048);
});

test('what a producer changes after the check has no effect', () => {
  const block = new DescriptorBlock(4).begin(bounce, destination).add(0, 100, 0);
  const writer = new RingWriter('unpack', 1);
  const slot = new Uint32Array(RING_SLOT_BYTES / 4);
  writer.take([block]);
  block.bytes.fill(0xff);
  writer.shareAmong(0, 'auto');
  writer.writeBlock(0, slot);
  assert.deepEqual(written(slot), [{ sourceOffset: 0, length: 100, destinationOffset: 0 }]);
});

test('a block over memory of another producer is read as it lies there', () => {
  const made = new DescriptorBlock(4).begin(bounce, destination).add(7, 100, 2 ** 40 + 1);
  const over = DescriptorBlock.over(made.bytes);
  assert.deepEqual([over.count, over.totalBytes, over.capacity], [1, 100, 4]);
  assert.throws(() => DescriptorBlock.over(new Uint8Array(64)), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => new DescriptorBlock(2049), { code: 'WL_INVALID_ARGUMENT' });
});

test('a full block says so, and offsets are whole numbers', () => {
  const block = new DescriptorBlock(1).begin(bounce, destination).add(0, 1, 0);
  assert.throws(() => block.add(1, 1, 1), { code: 'WL_CAPACITY' });
  block.begin(bounce, destination);
  for (const [source, length, place] of [
    [-1, 1, 0],
    [2 ** 32, 1, 0],
    [0, 1.5, 0],
    [0, 1, -1],
    [0, 1, 2 ** 53],
    [Number.NaN, 1, 0],
  ] as const) {
    assert.throws(() => block.add(source, length, place), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('memory and flags of a block are whole numbers too', () => {
  const block = new DescriptorBlock(1);
  for (const value of [-1, 1.5, Number.NaN, 2 ** 53, undefined, '7'] as number[]) {
    for (const part of ['address', 'bytes'] as const) {
      assert.throws(() => block.begin({ ...bounce, [part]: value }, destination), { code: 'WL_INVALID_ARGUMENT' });
      assert.throws(() => block.begin(bounce, { ...destination, [part]: value }), { code: 'WL_INVALID_ARGUMENT' });
    }
    const flag = { address: 4096, threshold: 1 };
    for (const part of ['address', 'threshold'] as const) {
      assert.throws(() => block.begin(bounce, destination, { ...flag, [part]: value }), {
        code: 'WL_INVALID_ARGUMENT',
      });
    }
  }
  assert.throws(() => block.begin(bounce, destination, { address: 0, threshold: 1 }), { code: 'WL_INVALID_ARGUMENT' });
  for (const memory of [null, undefined, 7, new Uint8Array(9)] as never[]) {
    assert.throws(() => block.begin(memory, destination), {
      code: 'WL_INVALID_ARGUMENT',
      message: /^Invalid bounce: /,
    });
    assert.throws(() => block.begin(bounce, memory), {
      code: 'WL_INVALID_ARGUMENT',
      message: /^Invalid destination: /,
    });
  }
  assert.throws(() => block.begin(bounce, destination, null as never), { code: 'WL_INVALID_ARGUMENT' });
  structuredClone(block.bytes.buffer, { transfer: [block.bytes.buffer as ArrayBuffer] });
  assert.throws(() => block.begin(bounce, destination), { code: 'WL_INVALID_ARGUMENT' });
  for (const memory of [null, undefined, new Uint32Array(99)]) {
    assert.throws(() => DescriptorBlock.over(memory as never), { code: 'WL_INVALID_ARGUMENT' });
  }
});
