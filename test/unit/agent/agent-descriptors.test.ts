import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { DescriptorList } from 'weftline/agent';
import { cutAlike } from '#lib/agent/endpoint/mover.js';
import { planTransfer, RegionFinder } from '#lib/agent/transfer.js';
import { namedParts } from '../../local/support/planned-transfer.ts';

const a = { kind: 'host', address: 4096, length: 1000, name: 'a' } as const;
const b = { kind: 'host', address: 5096, length: 1000, name: 'b' } as const;
const far = { kind: 'host', address: 90_000, length: 4000, name: 'far' } as const;

function plan(local: DescriptorList, remote: DescriptorList, merge = true): string[] {
  const parts = planTransfer(
    { list: local, regions: [a, b], owner: 'this agent' },
    { list: remote, regions: [far], owner: 'agent x' },
    { merge },
  );
  return namedParts(parts).map(
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

function listOfLengths(memory: typeof far | typeof a, sizes: readonly number[]): DescriptorList {
  let at: number = memory.address;
  const addresses = Float64Array.from(sizes, (size) => (at += size) - size);
  return new DescriptorList('host', addresses, Float64Array.from(sizes));
}

/** The address of each byte. */
function bytesIn(list: DescriptorList): number[] {
  return [...list.addresses].flatMap((address, index) =>
    Array.from({ length: list.lengths[index] as number }, (_, byte) => address + byte),
  );
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

/** Eight bytes at 4096, then these. */
function twoRanges(address: number, bytes: number): DescriptorList {
  return new DescriptorList('host', Float64Array.of(4096, address), Float64Array.of(8, bytes));
}

test('descriptors are whole numbers, on both sides and from bytes', () => {
  const most = Number.MAX_SAFE_INTEGER;
  const wrong = [
    [4096.5, 8],
    [4096, 8.5],
    [-1, 8],
    [4096, -8],
    [4096, 0],
    [Number.NaN, 8],
    [4096, Number.NaN],
    [Number.POSITIVE_INFINITY, 8],
    [4096, Number.POSITIVE_INFINITY],
    [2 ** 53, 8],
    [4096, 2 ** 53],
    [most - 7, 8],
  ] as const;
  for (const [address, bytes] of wrong) {
    assert.throws(() => twoRanges(address, bytes), { code: 'WL_INVALID_ARGUMENT', message: /descriptor 1 is/ });
  }
  assert.throws(() => twoRanges(4096, most - 4104).concat(twoRanges(4096, most - 4104)), {
    code: 'WL_INVALID_ARGUMENT',
    message: /together/,
  });
  for (const [offset, bytes] of [
    [0.5, 1],
    [0, 1.5],
    [Number.NaN, 1],
    [0, Number.NaN],
    [-1, 1],
    [0, 0],
    [2 ** 53, 1],
  ] as const) {
    assert.throws(() => DescriptorList.of(a, offset, bytes), { code: 'WL_INVALID_ARGUMENT' });
    assert.throws(() => DescriptorList.blocks(a, { blockBytes: bytes, offset }), { code: 'WL_INVALID_ARGUMENT' });
  }
  for (const options of [
    { blockBytes: 10, stride: 10.5 },
    { blockBytes: 10, count: 2.5 },
    { blockBytes: 10, stride: Number.NaN },
    { blockBytes: 10, stride: 0 },
  ]) {
    assert.throws(() => DescriptorList.blocks(a, options), { code: 'WL_INVALID_ARGUMENT' });
  }
  // Bytes of a peer: the address, then the length of the only descriptor.
  const encoded = DescriptorList.of(a).encode();
  for (const [at, value] of [
    [16, 2n ** 53n],
    [16, 2n ** 64n - 1n],
    [24, 0n],
    [24, 2n ** 53n],
    [24, 2n ** 53n - 4096n],
  ] as const) {
    const forged = encoded.slice();
    new DataView(forged.buffer).setBigUint64(at, value, true);
    assert.throws(() => DescriptorList.decode(forged), { code: 'WL_PROTOCOL' });
  }
});

test('a list whose arrays were written to after it was made is checked again by the plan', () => {
  const local = DescriptorList.of(a, 0, 100);
  local.addresses[0] = 4096.5;
  assert.throws(() => plan(local, DescriptorList.of(far, 0, 100)), { code: 'WL_INVALID_ARGUMENT' });
});

test('a range is found as by looking at every region, whether they overlap or not', () => {
  const region = fc.record({ address: fc.nat(60), length: fc.integer({ min: 1, max: 40 }) });
  const range = fc.record({ address: fc.nat(90), bytes: fc.integer({ min: 1, max: 30 }) });
  fc.assert(
    fc.property(fc.array(region, { maxLength: 12 }), fc.array(range, { maxLength: 30 }), (places, ranges) => {
      const regions = places.map((place, index) => ({ ...place, index, kind: 'host' as const }));
      const finder = new RegionFinder(regions, 'host');
      const sorted = regions.toSorted((one, other) => other.address - one.address);
      let latest: (typeof regions)[number] | undefined;
      for (const { address, bytes } of ranges) {
        const holds = (one: (typeof regions)[number]): boolean =>
          address >= one.address && address + bytes <= one.address + one.length;
        const expected = latest !== undefined && holds(latest) ? latest : sorted.find((one) => holds(one));
        const found = finder.find(address, bytes);
        assert.equal(finder.found[found], expected);
        if (expected !== undefined) {
          assert.equal(finder.begin, expected.address);
          latest = expected;
        }
      }
      assert.deepEqual(new Set(finder.found).size, finder.found.length);
    }),
  );
});

test("lists that are cut at each other's borders move the same bytes", () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(lengths, lengths, (one, other) => {
      const [here, there] = [listOfLengths(a, one), listOfLengths(far, other)];
      const { local, remote } = cutAlike(here, there);
      const bytes = Math.min(here.bytes, there.bytes);
      assert.deepEqual(local.lengths, remote.lengths);
      assert.deepEqual(bytesIn(local), bytesIn(here).slice(0, bytes));
      assert.deepEqual(bytesIn(remote), bytesIn(there).slice(0, bytes));
      const same = cutAlike(here, here);
      assert.deepEqual(same.local.addresses, here.addresses);
      assert.deepEqual(same.remote.addresses, here.addresses);
    }),
  );
});
