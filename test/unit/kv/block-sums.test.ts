// Checksums of blocks in host memory: over the ranges of each, part after part, in turns of the event loop.
import assert from 'node:assert/strict';
import test from 'node:test';
import { crc32 } from 'node:zlib';
import { Agent } from 'weftline/agent';
import { openBlockSums } from '#lib/kv/block-sums.js';
import { KvRanges } from '#lib/kv/kv-memory.js';
import fc from '../../support/fast-check.ts';

const create = (): Promise<Agent> => Agent.create('sums', { backends: ['local'] });

test('a block has the same sum wherever its ranges lie', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(1 << 16);
  memory.bytes.forEach((_, at) => (memory.bytes[at] = (at * at) >>> 3));
  const part = fc.record({
    bytes: fc.integer({ min: 1, max: 300 }),
    gap: fc.integer({ min: 0, max: 40 }),
    offset: fc.nat(9000),
  });
  const lists = fc.array(fc.nat(6), { maxLength: 12 });
  await fc.assert(
    fc.asyncProperty(fc.array(part, { minLength: 1, maxLength: 9 }), lists, async (shapes, list) => {
      const parts = shapes.map(({ bytes, gap, offset }) => ({ memory, bytes, stride: bytes + gap, offset }));
      const sums = await openBlockSums({ blocks: 7, parts }, KvRanges.of({ blocks: 7, parts }));
      const expected = list.map((block) =>
        crc32(
          Buffer.concat(
            parts.map(({ bytes, stride, offset }) => memory.bytes.slice(offset + block * stride).subarray(0, bytes)),
          ),
        ),
      );
      assert.deepEqual([...(await sums.of(list))], expected);
    }),
  );
});

test('memory that is closed between two turns is not touched any more', async () => {
  await using agent = await create();
  const memory = await agent.allocate(15 << 20);
  const parts = [{ memory, bytes: 5 << 20 }];
  const sums = await openBlockSums({ blocks: 3, parts }, KvRanges.of({ blocks: 3, parts }));
  const summing = assert.rejects(sums.of([0, 1, 2]), { code: 'WL_CLOSED' });
  await memory.close();
  await summing;
});
