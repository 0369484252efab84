// The check of descriptors in WebAssembly against the plain one, over random lists of every shape.
import assert from 'node:assert/strict';
import test from 'node:test';
import { RING_SLOT_BYTES } from '#lib/abi/unpack.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { RingWriter } from '#lib/unpack/ring-writer.js';
import { WeftlineError } from 'weftline';
import { DescriptorBlock } from 'weftline/unpack';
import { type CheckedBlock, findWrong, pairName } from '../support/fragment-check-reference.js';
import { seed } from '../support/seed.js';

const ROUNDS = 2000;
const writers = { unpack: new RingWriter('unpack', 8), pack: new RingWriter('pack', 8) };
const slot = new Uint32Array(RING_SLOT_BYTES / 4);

/** Blocks over the same destination or over several, of fragments that share an alignment or none. */
function randomBlocks(random: () => number): CheckedBlock[] {
  const below = (limit: number): number => Math.floor(random() * limit);
  const alignment = 2 ** below(13);
  const units = 2 ** (3 + below(random() < 0.2 ? 38 : 10));
  const most = 1 + below(8);
  const bounceBytes = Math.min(2 ** 31, units) * alignment;
  const far = 2 ** 45;
  return Array.from({ length: 1 + below(5) }, () => {
    const bounce = { address: far + below(2) * 2 ** 50, bytes: bounceBytes };
    const destination = { address: below(2) * 2 ** 44, bytes: Math.min(units * alignment, 2 ** 43) };
    const isOrdered = random() < 0.3;
    let next = 0;
    const fragments = Array.from({ length: below(40) }, () => {
      const length = random() < 0.1 ? 0 : (1 + below(most)) * alignment;
      const offset = isOrdered ? next + below(3) * alignment : below(units) * alignment;
      next = offset + length;
      // Most lie inside, so that the search for overlaps is reached.
      const room = random() < 0.004 ? 0 : length;
      return {
        sourceOffset: Math.min(offset, Math.max(0, bounce.bytes - room), 2 ** 32 - alignment),
        length,
        destinationOffset: Math.min(offset, Math.max(0, destination.bytes - room)),
      };
    });
    return { bounce, destination, fragments };
  });
}

/** `writer.take()` of it, and what it throws. */
function errorOf(blocks: readonly CheckedBlock[], direction: 'unpack' | 'pack'): WeftlineError | undefined {
  const list = blocks.map(({ bounce, destination, fragments }) => {
    const block = new DescriptorBlock(40).begin(bounce, destination);
    for (const { sourceOffset, length, destinationOffset } of fragments) {
      block.add(sourceOffset, length, destinationOffset);
    }
    return block;
  });
  try {
    writers[direction].take(list);
    return undefined;
  } catch (error) {
    assert.ok(error instanceof WeftlineError && error.code === 'WL_INVALID_ARGUMENT', String(error));
    return error;
  }
}

test('what is wrong with random blocks is found if and only if something is, and named', () => {
  const random = seededRandom(seed);
  const seen = { good: 0, outside: 0, overlap: 0 };
  for (let round = 0; round < ROUNDS; round++) {
    const blocks = randomBlocks(random);
    for (const direction of ['unpack', 'pack'] as const) {
      const expected = findWrong(blocks, direction === 'pack');
      const error = errorOf(blocks, direction);
      const told = `round ${round}, ${direction}: ${error?.message}`;
      seen[expected.kind] += 1;
      if (expected.kind === 'good') assert.equal(error, undefined, told);
      else if (expected.kind === 'outside') {
        const { block, descriptor, side } = error?.details ?? {};
        assert.deepEqual({ kind: 'outside', block, descriptor, side }, expected, told);
      } else {
        const { block, descriptor, otherBlock, otherDescriptor } = error?.details ?? {};
        const pair = pairName(
          `${String(block)}:${String(descriptor)}`,
          `${String(otherBlock)}:${String(otherDescriptor)}`,
        );
        assert.ok(expected.pairs.has(pair), `${told}, expected one of ${[...expected.pairs].join(', ')}`);
      }
    }
  }
  for (const [kind, count] of Object.entries(seen)) assert.ok(count > ROUNDS / 50, `${kind}: ${count}`);
});

test('what is written is what was taken, without empty fragments', () => {
  const random = seededRandom(seed + 1);
  const writer = writers.unpack;
  for (let round = 0; round < ROUNDS; round++) {
    const blocks = randomBlocks(random);
    if (errorOf(blocks, 'unpack') !== undefined) continue;
    writer.shareAmong(0, 'auto');
    for (const [block, { fragments }] of blocks.entries()) {
      const filled = fragments.filter(({ length }) => length > 0);
      assert.equal(writer.writeBlock(block, slot), filled.length);
      const expected = filled.flatMap(({ sourceOffset, length, destinationOffset }) => [
        sourceOffset,
        length,
        destinationOffset % 2 ** 32,
        Math.floor(destinationOffset / 2 ** 32),
      ]);
      assert.deepEqual([...slot.subarray(16, 16 + expected.length)], expected);
    }
  }
});

test('an offset near 2^64 does not wrap around', () => {
  const block = new DescriptorBlock(1).begin({ address: 0, bytes: 100 }, { address: 1000, bytes: 100 }).add(0, 50, 0);
  block.words[18] = 0xffff_ffe0;
  block.words[19] = 0xffff_ffff;
  assert.throws(() => writers.unpack.take([block]), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => writers.pack.take([block]), { code: 'WL_INVALID_ARGUMENT' });
});
