// Where the ranges of blocks lie, as vLLM shapes tensors, and what a table tells of them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';
import { type KvPart, vllmParts, type VllmShape } from 'weftline/kv';
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
        const parts = vllmParts(memory, { layer: 0, order, blocks, blockTokens, tokenBytes });
        const ranges = KvRanges.of(agent, { blocks, parts });
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
  await using second = await agent.allocate(1000);
  const ofParts = (part: Partial<KvPart>, blocks = 10) =>
    KvRanges.of(agent, { blocks, parts: [good, { memory: second, bytes: 100, ...part }] });
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
    [{ name: 7 as never }, 10],
  ] as const) {
    assert.throws(() => ofParts(part, blocks), { code: 'WL_INVALID_ARGUMENT', message: /parts\[[01]\]/ });
  }
  for (const blocks of [0, -1, 1.5, '4' as never])
    assert.throws(() => ofParts({}, blocks), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => KvRanges.of(agent, { blocks: 2 ** 24, parts: [good, good] }), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => KvRanges.of(agent, { blocks: 1, parts: [] }), { code: 'WL_INVALID_ARGUMENT' });
  for (const shape of [
    { order: 'k-first' },
    { blocks: 0 },
    { blockTokens: 0.5 },
    { heads: 1 },
    { layer: '' },
    { layer: -1 },
    { layer: undefined },
  ]) {
    const whole = { layer: 1, order: 'mla', blocks: 2, blockTokens: 2, tokenBytes: 2, ...shape } as never;
    assert.throws(() => vllmParts(memory, whole), { code: 'WL_INVALID_ARGUMENT' });
  }
});

test('errors name the field of a part, and what it would need', async () => {
  await using agent = await create();
  await using other = await Agent.create('other', { backends: ['local'] });
  await using memory = await agent.allocate(131_072);
  const refuse = (part: Partial<KvPart>, message: RegExp): void =>
    assert.throws(() => KvRanges.of(agent, { blocks: 33, parts: [{ memory, bytes: 4096, ...part }] }), {
      code: 'WL_INVALID_ARGUMENT',
      message,
    });
  refuse({}, /parts\[0\]: 33 blocks .* need 135168 bytes, and its memory has 131072/);
  refuse({ bytes: 10.5 }, /bytes of parts\[0\]: expected a whole number .*, got 10\.5/);
  refuse({ bytes: 4096n as never }, /bytes of parts\[0\]: expected a whole number .*, got 4096n/);
  refuse({ bytes: 2 ** 31 }, /bytes of parts\[0\]: .* at most 2147483647, got 2147483648/);
  refuse({ bytes: 2 ** 32 }, /at most 2147483647/);
  refuse({ stride: 4095 }, /stride of parts\[0\]: .* at least 4096, got 4095/);
  const far = await other.allocate(131_072, { name: 'far' });
  refuse({ memory: far, bytes: 64 }, /memory of parts\[0\]: expected memory .* agent layouts.*, got "far"/);
  const closed = await agent.allocate(131_072);
  await closed.close();
  refuse({ memory: closed, bytes: 64 }, /memory of parts\[0\]: .* and open/);
});

test('parts that have bytes in common are refused, both by their numbers', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(20_000);
  const part = fc.record({ bytes: fc.integer({ min: 1, max: 40 }), gap: fc.nat(90), offset: fc.nat(600) });
  const counted = { apart: 0, common: 0 };
  fc.assert(
    fc.property(
      fc.array(part, { minLength: 2, maxLength: 4 }),
      fc.integer({ min: 1, max: 7 }),
      fc.boolean(),
      (shapes, blocks, isAlike) => {
        const parts = shapes.map(({ bytes, gap, offset }) => ({
          memory,
          bytes,
          stride: isAlike ? 130 : bytes + gap,
          offset,
        }));
        // The parts that have a byte, each as often as it has it.
        const owners: number[][] = [];
        for (const [index, { bytes, stride, offset }] of parts.entries()) {
          for (let block = 0; block < blocks; block++)
            for (let at = offset + block * stride, left = bytes; left > 0; at++, left--)
              (owners[at] ??= []).push(index);
        }
        const common = owners.filter((list) => list.length > 1);
        counted[common.length > 0 ? 'common' : 'apart']++;
        let message = '';
        try {
          KvRanges.of(agent, { blocks, parts });
        } catch (error) {
          message = (error as Error).message;
        }
        if (common.length === 0) return assert.equal(message, '');
        const pair =
          message
            .match(/parts\[(\d)\] and parts\[(\d)\] have bytes in common/)
            ?.slice(1)
            .map(Number) ?? [];
        assert.ok(
          common.some((list) => pair.every((one) => list.includes(one))) && new Set(pair).size === 2,
          `${message} of ${JSON.stringify(parts)}`,
        );
      },
    ),
    { numRuns: 400 },
  );
  assert.ok(counted.apart > 30 && counted.common > 30, JSON.stringify(counted));
  // The store has one block more than the shape of the layer.
  const parts = vllmParts(memory, { layer: 0, order: 'kv-first', blocks: 5, blockTokens: 4, tokenBytes: 8 });
  assert.throws(() => KvRanges.of(agent, { blocks: 6, parts }), /parts\[0\] and parts\[1\]/);
});

test('blocks are alike by the sizes of their parts, and by names that both sides give', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(5000);
  const of = (...parts: [bytes: number, name?: string][]): KvRanges =>
    KvRanges.of(agent, {
      blocks: 2,
      parts: parts.map(([bytes, name], index) => ({
        memory,
        bytes,
        offset: 400 * index,
        ...(name === undefined ? {} : { name }),
      })),
    });
  const own = of([100, 'keys'], [100, 'values'], [60]);
  for (const theirs of [own, of([100], [100], [60, 'x']), of([100, 'keys'], [100], [60])]) {
    assert.equal(theirs.whyUnlike(own), undefined);
  }
  assert.match(of([100], [100]).whyUnlike(own)!, /has 2 parts, one of this reader 3/);
  assert.match(of([100], [96], [60]).whyUnlike(own)!, /has 96 bytes in part 1, one of this reader 100/);
  assert.match(of([100, 'values'], [100, 'keys'], [60]).whyUnlike(own)!, /has a part 0 of another name/);
});

test('parts of layers have their names, so that layers in another order are not alike', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(5000);
  const shape = { order: 'kv-first', blocks: 2, blockTokens: 2, tokenBytes: 2 } as const;
  const namesOf = (layer: number | string, order: VllmShape['order']): unknown =>
    vllmParts(memory, { ...shape, layer, order }).map(({ name }) => name);
  for (const order of ['kv-first', 'blocks-first'] as const)
    assert.deepEqual(namesOf(3, order), ['layer 3 keys', 'layer 3 values']);
  assert.deepEqual(namesOf('model.layers.3.indexer', 'mla'), ['model.layers.3.indexer entries']);
  const parts = [0, 1].map((layer) =>
    vllmParts(memory, { ...shape, layer }).map((part) => ({ ...part, offset: part.offset! + 100 * layer })),
  );
  const [own, theirs] = [parts, parts.toReversed()].map((all) => KvRanges.of(agent, { blocks: 2, parts: all.flat() }));
  assert.equal(own!.whyUnlike(own!), undefined);
  assert.match(theirs!.whyUnlike(own!)!, /has a part 0 of another name/);
});

test('a reader learns from a table where all ranges lie, and no other bytes pass for one', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(5000);
  const ranges = KvRanges.of(agent, {
    blocks: 7,
    parts: [
      { memory, bytes: 12, stride: 100, offset: 8 },
      { memory, bytes: 40, offset: 4000, name: 'values' },
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
