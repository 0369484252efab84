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
    before: fc.nat(900),
  });
  const lists = fc.array(fc.nat(6), { maxLength: 12 });
  await fc.assert(
    fc.asyncProperty(fc.array(part, { minLength: 1, maxLength: 9 }), lists, async (shapes, list) => {
      let end = 0;
      const parts = shapes.map(({ bytes, gap, before }) => {
        const [offset, stride] = [end + before, bytes + gap];
        end = offset + 7 * stride;
        return { memory, bytes, stride, offset };
      });
      const sums = await openBlockSums({ blocks: 7, parts }, KvRanges.of(agent, { blocks: 7, parts }));
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
  const sums = await openBlockSums({ blocks: 3, parts }, KvRanges.of(agent, { blocks: 3, parts }));
  const summing = assert.rejects(sums.of([0, 1, 2]), { code: 'WL_CLOSED' });
  await memory.close();
  await summing;
});

test('it closes when calls that are under way have ended, which they do at their next turn', async () => {
  await using agent = await create();
  await using memory = await agent.allocate(15 << 20);
  const parts = [{ memory, bytes: 5 << 20 }];
  const sums = await openBlockSums({ blocks: 3, parts }, KvRanges.of(agent, { blocks: 3, parts }));
  const ended: string[] = [];
  const calls = [sums.of([0, 1, 2]), sums.of([2, 1, 0])].map((call) =>
    call.then(
      () => ended.push('summed'),
      (error: { readonly code?: string }) => ended.push(`${error.code}`),
    ),
  );
  await sums.close();
  assert.deepEqual(ended, ['WL_CLOSED', 'WL_CLOSED']);
  await Promise.all(calls);
  await assert.rejects(sums.of([0]), { code: 'WL_CLOSED' });
});
