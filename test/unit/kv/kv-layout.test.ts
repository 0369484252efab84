// Where the ranges of blocks lie, as vLLM shapes tensors, and what a table tells of them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';
import { type KvPart, vllmParts } from 'weftline/kv';
import { KvRanges } from '#lib/kv/kv-memory.js';
import { KvTable, readTable } from '#lib/kv/kv-table.js';
import fc from '../../support/fast-check.ts';

const create = (): Promise<Agent> => Agent.create('layouts', { backends: ['local'] });

/** The place of an element of a row-major tensor. */
function placeOf(shape: readonly number[], index: readonly number[]): number {
  return index.reduce((sum, at, dimension) => sum * shape[dimension]! + at, 0);
}

test('the parts of a layer are the bytes of its block in each shape of vLLM', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(1 << 16);
  fc.assert(
    fc.property(
      fc.constantFrom('kv-first', 'blocks-first', 'mla'),
      fc.integer({ min: 1, max: 9 }),
      fc.integer({ min: 1, max: 16 }),
      fc.integer({ min: 1, max: 150 }),
      (order, blocks, blockTokens, tokenBytes) => {
        const parts = vllmParts(memory, { order, blocks, blockTokens, tokenBytes });
        const ranges = KvRanges.of({ blocks, parts });
        for (let block = 0; block < blocks; block++) {
          const list = ranges.list.select(ranges.entries([block]));
          const expected =
            order === 'mla'
              ? [placeOf([blocks, blockTokens, tokenBytes], [block, 0, 0])]
              : [0, 1].map((which) =>
                  order === 'kv-first'
                    ? placeOf([2, blocks, blockTokens, tokenBytes], [which, block, 0, 0])
                    : placeOf([blocks, 2, blockTokens, tokenBytes], [block, which, 0, 0]),
                );
          assert.deepEqual(
            expected.map((_, index) => list.entry(index)),
            expected.map((offset) => ({ address: memory.address + offset, length: blockTokens * tokenBytes })),
          );
          assert.equal(list.length, expected.length);
        }
      },
    ),
  );
});

test('parts that are none are refused, each by its number', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(1000);
  const good: KvPart = { memory, bytes: 100 };
  const ofParts = (part: Partial<KvPart>, blocks = 10) => KvRanges.of({ blocks, parts: [good, { ...good, ...part }] });
  assert.equal(ofParts({}).blockBytes, 200);
  for (const [part, blocks] of [
    [{ offset: 1 }, 10],
    [{ stride: 99 }, 10],
    [{ stride: 112 }, 10],
    [{ bytes: 0 }, 10],
    [{ bytes: 1.5 }, 10],
    [{ offset: -1 }, 9],
    [{}, 11],
    [{ memory: {} as never }, 10],
    [{ size: 1 } as never, 10],
  ] as const) {
    assert.throws(() => ofParts(part, blocks), { code: 'WL_INVALID_ARGUMENT', message: /parts\[[01]\]/ });
  }
  for (const blocks of [0, -1, 1.5, '4' as never])
    assert.throws(() => ofParts({}, blocks), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => KvRanges.of({ blocks: 2 ** 24, parts: [good, good] }), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => KvRanges.of({ blocks: 1, parts: [] }), { code: 'WL_INVALID_ARGUMENT' });
  for (const shape of [{ order: 'k-first' }, { blocks: 0 }, { blockTokens: 0.5 }, { heads: 1 }]) {
    const whole = { order: 'mla', blocks: 2, blockTokens: 2, tokenBytes: 2, ...shape } as never;
    assert.throws(() => vllmParts(memory, whole), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('a reader learns from a table where all ranges lie, and no other bytes pass for one', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(5000);
  const ranges = KvRanges.of({
    blocks: 7,
    parts: [
      { memory, bytes: 12, stride: 100, offset: 8 },
      { memory, bytes: 40, offset: 4000 },
    ],
  });
  const table = await KvTable.create(agent, 'a', ranges, 5);
  const { bytes } = table.registration;
  const read = readTable(bytes);
  assert.deepEqual(read.ranges.parts, ranges.parts);
  assert.deepEqual(read.ranges.list.encode(), ranges.list.encode());
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const generation = words[read.places.generation(4) / 4]!;
  assert.equal(generation % 2, 1);
  assert.equal(table.advance(4), generation + 1);
  assert.equal(words[read.places.generation(4) / 4], generation + 1);
  table.withdraw(5);
  assert.equal(words[read.places.generation(4) / 4], generation + 2);
  assert.equal(words[read.places.generation(5) / 4]! % 2, 1);
  table.setLease(4, 77);
  assert.equal(words[read.places.leaseId(4) / 4], 77);
  words.set([77, 3], read.places.mark(4) / 4);
  assert.deepEqual([table.markOf(4, 77), table.markOf(4, 78), table.markOf(3, 77)], [3, 0, 0]);
  for (const wrong of [
    bytes.slice(0, 20),
    bytes.slice(0, -4),
    new Uint8Array(bytes.length),
    bytes.map((byte) => byte ^ 1),
  ]) {
    assert.throws(() => readTable(wrong), { code: 'WL_PROTOCOL' });
  }
  await table.registration.close();
});
