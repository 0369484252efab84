import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { DescriptorList } from 'weftline/agent';
import { planTransfer } from '#lib/agent/transfer-plan.js';

const a = { kind: 'host', address: 4096, length: 1000, name: 'a' } as const;
const b = { kind: 'host', address: 5096, length: 1000, name: 'b' } as const;
const far = { kind: 'host', address: 90_000, length: 4000, name: 'far' } as const;

function plan(local: DescriptorList, remote: DescriptorList, merge = true): string[] {
  const parts = planTransfer(
    { list: local, regions: [a, b], owner: 'this agent' },
    { list: remote, regions: [far], owner: 'agent x' },
    { merge },
  );
  return parts.map(
    (part) => `${part.local.name}+${part.localOffset} ${part.remote.name}+${part.remoteOffset} ${part.bytes}`,
  );
}

/** Where each hundred bytes go from and to. */
function bytesOf(lines: readonly string[]): string[] {
  return lines.flatMap((line) => {
    const [from = 0, to = 0, bytes = 0] = line.match(/\d+/g)?.map(Number) ?? [];
    return Array.from({ length: bytes / 100 }, (_, index) => `${from + index * 100} ${to + index * 100}`);
  });
}

test('blocks are addressed by index', () => {
  const blocks = DescriptorList.blocks(far, { blockBytes: 100, stride: 400, offset: 8 });
  assert.equal(blocks.length, 10);
  assert.deepEqual([...blocks.select([9, 0]).addresses], [93_608, 90_008]);
  assert.equal(blocks.bytes, 1000);
  assert.throws(() => blocks.select([10]), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => DescriptorList.blocks(far, { blockBytes: 100, count: 41 }), { code: 'WL_INVALID_ARGUMENT' });
  assert.throws(() => DescriptorList.of(far, 10, 4000), { code: 'WL_INVALID_ARGUMENT' });
});

test('a list crosses the wire', () => {
  const list = DescriptorList.of(a, 3, 5).concat(DescriptorList.of(far));
  assert.deepEqual(DescriptorList.decode(list.encode()), list);
  assert.throws(() => DescriptorList.decode(list.encode().subarray(1)), { code: 'WL_PROTOCOL' });
  fc.assert(
    fc.property(fc.uint8Array(), (bytes) => assert.throws(() => DescriptorList.decode(bytes), { code: 'WL_PROTOCOL' })),
  );
});

test('neighbours are joined where they are neighbours on both sides, and within one region', () => {
  const local = DescriptorList.blocks(a, { blockBytes: 100 }).concat(DescriptorList.blocks(b, { blockBytes: 100 }));
  const remote = DescriptorList.blocks(far, { blockBytes: 100, count: 20 });
  assert.deepEqual(plan(local, remote), ['a+0 far+0 1000', 'b+0 far+1000 1000']);
  assert.equal(plan(local, remote, false).length, 20);
  const indices = [0, 1, 2, 4, 5, 3];
  assert.deepEqual(plan(local.select(indices), remote.select(indices)), [
    'a+0 far+0 300',
    'a+400 far+400 200',
    'a+300 far+300 100',
  ]);
});

test('a range that straddles two regions lies in neither', () => {
  const straddling = new DescriptorList('host', Float64Array.of(5000), Float64Array.of(200));
  assert.throws(
    () => plan(straddling, DescriptorList.of(far, 0, 200)),
    /Descriptor 0 .* leaves a region of 1000 bytes by 104/,
  );
});

test('the joined parts move the same bytes', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(9), { minLength: 1, maxLength: 30 }), (indices) => {
      const local = DescriptorList.blocks(a, { blockBytes: 100 }).select(indices);
      const remote = DescriptorList.blocks(far, { blockBytes: 100 }).select(indices);
      assert.deepEqual(bytesOf(plan(local, remote)), bytesOf(plan(local, remote, false)));
    }),
  );
});
