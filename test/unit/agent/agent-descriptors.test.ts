import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { WeftlineError } from 'weftline';
import { DescriptorList } from 'weftline/agent';
import { cutAlike } from '#lib/agent/endpoint/mover.js';
import { MAX_SELECTED, planTransfer, RegionFinder, SelectionPlan } from '#lib/agent/transfer-plan.js';
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

/** The ranges of a list, one by one. */
function entriesOf(list: DescriptorList): { readonly address: number; readonly length: number }[] {
  return Array.from({ length: list.length }, (_, index) => list.entry(index));
}

/** The address of each byte. */
function bytesIn(list: DescriptorList): number[] {
  return entriesOf(list).flatMap(({ address, length }) => Array.from({ length }, (_, byte) => address + byte));
}

test('blocks are addressed by index', () => {
  const blocks = DescriptorList.blocks(far, { blockBytes: 100, stride: 400, offset: 8 });
  assert.equal(blocks.length, 10);
  assert.deepEqual(
    entriesOf(blocks.select([9, 0])).map(({ address }) => address),
    [93_608, 90_008],
  );
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
  for (const [stride, count] of [
    [0, 2],
    [0.5, 2],
    [-1, 2],
    [Number.NaN, 2],
    [2 ** 52, 3],
    [8, 0],
  ] as const) {
    const [one, two] = [Float64Array.of(4096), Float64Array.of(8)];
    assert.throws(() => new DescriptorList('host', one, two, Float64Array.of(stride), Uint32Array.of(count)), {
      code: 'WL_INVALID_ARGUMENT',
      message: /descriptor 0 is/,
    });
  }
  // Bytes of a peer: address, length, stride and count of the only run.
  const run = DescriptorList.blocks(a, { blockBytes: 10 }).encode();
  for (const [at, value] of [
    [8, 2n],
    [12, 2n],
    [16, 2n ** 53n],
    [24, 0n],
    [32, 0n],
    [32, 2n ** 53n],
    [32, 2n ** 50n],
    [40, 0n],
    [40, 2n ** 32n],
    [40, 2n ** 64n - 1n],
  ] as const) {
    const forged = run.slice();
    if (at < 16) new DataView(forged.buffer).setUint32(at, Number(value), true);
    else new DataView(forged.buffer).setBigUint64(at, value, true);
    assert.throws(() => DescriptorList.decode(forged), { code: 'WL_PROTOCOL' });
  }
  // Address, then length of the only range.
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

test('a list does not change with the arrays that it was made of', () => {
  const [addresses, lengths] = [Float64Array.of(4096), Float64Array.of(100)];
  const list = new DescriptorList('host', addresses, lengths);
  addresses[0] = 4096.5;
  lengths[0] = -1;
  assert.deepEqual(entriesOf(list), [{ address: 4096, length: 100 }]);
});

const strideOptions = fc.record({
  address: fc.nat(50),
  length: fc.integer({ min: 1, max: 6 }),
  stride: fc.integer({ min: 1, max: 9 }),
  count: fc.integer({ min: 1, max: 5 }),
});
type Strided = { readonly address: number; readonly length: number; readonly stride: number; readonly count: number };

/** A list of runs, and its ranges as written out by hand. */
function listOfRuns(runs: readonly Strided[]): {
  readonly list: DescriptorList;
  readonly ranges: { address: number; length: number }[];
} {
  const column = (name: keyof Strided): Float64Array => Float64Array.from(runs, (run) => run[name]);
  const counts = Uint32Array.from(runs, ({ count }) => count);
  return {
    list: new DescriptorList('host', column('address'), column('length'), column('stride'), counts),
    ranges: runs.flatMap(({ address, length, stride, count }) =>
      Array.from({ length: count }, (_, index) => ({ address: address + index * stride, length })),
    ),
  };
}

test('a list of runs has the entries, selections, joins and bytes of the same ranges one by one', () => {
  fc.assert(
    fc.property(
      fc.array(strideOptions, { minLength: 1, maxLength: 8 }),
      fc.array(strideOptions, { maxLength: 4 }),
      fc.array(fc.nat(1000), { maxLength: 30 }),
      (runs, others, numbers) => {
        const { list, ranges } = listOfRuns(runs);
        const other = listOfRuns(others);
        assert.equal(list.length, ranges.length);
        assert.equal(
          list.bytes,
          ranges.reduce((sum, { length }) => sum + length, 0),
        );
        assert.deepEqual(entriesOf(list), ranges);
        const { addresses, lengths } = list.expand();
        assert.deepEqual(
          ranges.map((_, index) => ({ address: addresses[index], length: lengths[index] })),
          ranges,
        );
        // Some indices go on where the last one ended.
        const indices = numbers.flatMap((number) => [number, number + 1]).map((number) => number % ranges.length);
        const selected = list.select(indices);
        assert.deepEqual(
          entriesOf(selected),
          indices.map((index) => ranges[index]),
        );
        assert.deepEqual(entriesOf(list.concat(other.list)), [...ranges, ...other.ranges]);
        for (const one of [list, selected]) {
          assert.deepEqual(entriesOf(DescriptorList.decode(one.encode())), entriesOf(one));
        }
        assert.throws(() => list.entry(ranges.length), { code: 'WL_INVALID_ARGUMENT' });
      },
    ),
  );
});

test('the stride of a single range means nothing, whatever it is', () => {
  const lengths = Float64Array.of(8, 16, 8);
  const expected = [
    { address: 4096, length: 8 },
    { address: 4200, length: 16 },
    { address: 4300, length: 8 },
    { address: 4400, length: 8 },
  ];
  for (const stride of [Number.NaN, -8, 0.5, Infinity, -Infinity, 2 ** 60, -0]) {
    const addresses = Float64Array.of(4096, 4200, 4300);
    const strides = Float64Array.of(stride, stride, 100);
    const list = new DescriptorList('host', addresses, lengths, strides, Uint32Array.of(1, 1, 2));
    assert.deepEqual([...list.runs.strides], [8, 16, 100]);
    assert.deepEqual(entriesOf(list), expected);
    const single = new DescriptorList('host', addresses, lengths, strides.fill(stride));
    assert.deepEqual(entriesOf(single), expected.slice(0, 3));
    assert.deepEqual(plan(list, listOfLengths(far, [8, 16, 8, 8]), false), [
      'a+0 far+0 8',
      'a+104 far+8 16',
      'a+204 far+24 8',
      'a+304 far+32 8',
    ]);
  }
});

test('a selection of more entries than memory holds is refused as such', () => {
  const list = DescriptorList.of(a);
  for (const length of [2 ** 40, 2 ** 53 - 1, 2 ** 26 + 1])
    assert.throws(() => list.select({ length }), { code: 'WL_INVALID_ARGUMENT', message: /indices\.length/ });
});

test('blocks take one run, and what goes on where the last one ended is not another', () => {
  const blocks = DescriptorList.blocks(far, { blockBytes: 10, stride: 20 });
  assert.equal(blocks.runs.counts.length, 1);
  assert.equal(blocks.encode().length, 48);
  assert.equal(blocks.select([3, 4, 5, 9, 8]).runs.counts.join(), '3,1,1');
  const most = DescriptorList.blocks(
    { kind: 'host', address: 0, length: 2 ** 52 },
    { blockBytes: 1, count: 2 ** 32 - 1 },
  );
  assert.equal(most.length, 2 ** 32 - 1);
  assert.deepEqual(most.entry(2 ** 32 - 2), { address: 2 ** 32 - 2, length: 1 });
});

test('lists of runs are planned as the same ranges one by one, whatever regions they cross', () => {
  const regions = [
    { kind: 'host', address: 0, length: 30, name: 'low' },
    { kind: 'host', address: 24, length: 80, name: 'middle' },
    { kind: 'host', address: 90, length: 60, name: 'high' },
  ] as const;
  fc.assert(
    fc.property(
      fc.array(fc.tuple(strideOptions, strideOptions, fc.nat(1)), { minLength: 1, maxLength: 6 }),
      fc.boolean(),
      (pairs, merge) => {
        // Runs of one side end elsewhere than those of the other, but the lengths of entries are the same.
        const local = listOfRuns(pairs.map(([run]) => run));
        const remote = listOfRuns(
          pairs.flatMap(([{ length, count }, { address, stride }, cut]) =>
            cut === 0 || count === 1
              ? [{ address, length, stride, count }]
              : [
                  { address, length, stride, count: 1 },
                  { address: address + 7, length, stride, count: count - 1 },
                ],
          ),
        );
        const here = { list: local.list, regions, owner: 'this agent' };
        const there = { list: remote.list, regions, owner: 'agent x' };
        const planned = planTransfer(here, there, { merge });
        const bytes = namedParts(planned).flatMap((part) =>
          Array.from({ length: part.bytes }, (_, at) => {
            assert.ok(part.localOffset + part.bytes <= part.local.length);
            assert.ok(part.remoteOffset + part.bytes <= part.remote.length);
            return [part.local.address + part.localOffset + at, part.remote.address + part.remoteOffset + at];
          }),
        );
        const expected = local.ranges.flatMap(({ address, length }, index) =>
          Array.from({ length }, (_, at) => [address + at, (remote.ranges[index]?.address ?? -1) + at]),
        );
        assert.deepEqual(bytes, expected);
        if (!merge) assert.equal(planned.parts.sums().ranges, local.ranges.length);
        assert.ok(planned.parts.count <= local.ranges.length);
      },
    ),
  );
});

test('a selection is planned as the entries that it names one by one, again and again', () => {
  const regions = [
    { kind: 'host', address: 0, length: 70, name: 'low' },
    { kind: 'host', address: 60, length: 90, name: 'high' },
  ] as const;
  const runs = fc.array(strideOptions, { minLength: 1, maxLength: 5 });
  const indices = fc.array(fc.array(fc.tuple(fc.nat(1000), fc.nat(1000)), { minLength: 1, maxLength: 12 }), {
    maxLength: 4,
  });
  fc.assert(
    fc.property(runs, runs, indices, fc.boolean(), (ours, theirs, posts, merge) => {
      const [local, remote] = [listOfRuns(ours), listOfRuns(theirs)];
      const side = { regions, owner: 'x' };
      const chosen = new SelectionPlan({ ...side, list: local.list }, { ...side, list: remote.list }, { merge });
      for (const post of posts) {
        const pairs = post
          .flatMap(([here, there]) => [
            [here, there],
            [here + 1, there + 1],
          ])
          .map(([here = 0, there = 0]) => [here % local.list.length, there % remote.list.length] as const)
          .slice(0, chosen.plan.parts.capacity);
        const wrong = pairs.findIndex(([here, there]) => local.ranges[here]?.length !== remote.ranges[there]?.length);
        const selection = { local: pairs.map(([here]) => here), remote: pairs.map(([, there]) => there) };
        if (wrong !== -1) {
          assert.throws(() => chosen.select(selection), { code: 'WL_INVALID_ARGUMENT' });
          continue;
        }
        chosen.select(selection);
        const moved = namedParts(chosen.plan).flatMap((part) =>
          Array.from({ length: part.bytes }, (_, at) => [
            part.local.address + part.localOffset + at,
            part.remote.address + part.remoteOffset + at,
          ]),
        );
        const expected = pairs.flatMap(([here, there]) => {
          const [one, other] = [local.ranges[here], remote.ranges[there]] as const;
          assert.ok(one && other);
          return Array.from({ length: one.length }, (_, at) => [one.address + at, other.address + at]);
        });
        assert.deepEqual(moved, expected);
        assert.deepEqual([chosen.entries, chosen.bytes], [pairs.length, expected.length]);
        if (!merge) assert.equal(chosen.plan.parts.sums().ranges, pairs.length);
      }
    }),
  );
});

test('what goes on in both lists is one row of a selection, and more than a table holds is refused', () => {
  const memory = { kind: 'host', address: 0, length: 2 ** 40, name: 'm' } as const;
  const list = DescriptorList.blocks(memory, { blockBytes: 8, stride: 100, count: 2_000_000 });
  const side = { list, regions: [memory], owner: 'x' };
  const chosen = new SelectionPlan(side, side, { merge: true });
  chosen.select({ local: [3, 4, 5, 9, 8], remote: [0, 1, 2, 3, 4] });
  const { parts } = chosen.plan;
  assert.deepEqual([...parts.ranges.subarray(0, parts.count)], [3, 1, 1]);
  assert.equal(parts.capacity, MAX_SELECTED);
  assert.throws(() => chosen.select({ local: new Int32Array(MAX_SELECTED + 1) }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /length: expected 1 to 1048576, got 1048577/,
  });
  const other = DescriptorList.of({ ...memory, address: 2 ** 41 }, 0, 8);
  assert.throws(() => new SelectionPlan({ ...side, list: list.concat(other) }, side, { merge: true }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /Descriptor 2000000 .* lies in no region/,
  });
});

test('an index that is none is told with its list, its side and its place', () => {
  const memory = { kind: 'host', address: 0, length: 4096, name: 'm' } as const;
  const ours = DescriptorList.blocks(memory, { blockBytes: 16 });
  const theirs = DescriptorList.blocks(memory, { blockBytes: 16, count: 63 }).concat(DescriptorList.of(memory, 0, 64));
  const [here, there] = [
    { list: ours, regions: [memory], owner: 'x' },
    { list: theirs, regions: [memory], owner: 'x' },
  ];
  const chosen = new SelectionPlan(here, there, { merge: true });
  const message = (local: unknown, remote?: unknown): string => {
    const selection = { local, ...(remote === undefined ? {} : { remote }) } as Parameters<typeof chosen.select>[0];
    return thrownBy(() => chosen.select(selection));
  };
  const ofOurs = 'the number of an entry of the local list, 0 to 255';
  const ofTheirs = 'the number of an entry of the remote list, 0 to 63';
  assert.equal(message([0, 256], [0, 1]), `Invalid selection.local[1]: expected ${ofOurs}, got 256`);
  assert.equal(message([0, 1, 2], [0, 1, -1]), `Invalid selection.remote[2]: expected ${ofTheirs}, got -1`);
  assert.equal(message(BigInt64Array.of(7n), [0]), `Invalid selection.local[0]: expected ${ofOurs}, got 7n`);
  // It was found among those of the local list, and there alone.
  assert.equal(
    message(Int32Array.of(0, 64)),
    `Invalid selection.remote[1]: expected ${ofTheirs.replace(',', ' (it is local, if left out),')}, got 64`,
  );
  assert.equal(
    message([5], [63]),
    'Invalid selection.remote[0]: expected an entry of 16 bytes, as local entry 5 has, got "entry 63, of 64 bytes"',
  );
  assert.equal(
    thrownBy(() => ours.select([3, 0.5])),
    'Invalid indices[1]: expected the number of an entry of the list, 0 to 255, got 0.5',
  );
  assert.equal(
    thrownBy(() => ours.entry(256)),
    'Invalid index: expected the number of an entry of the list, 0 to 255, got 256',
  );
  const none = { ...there, list: theirs.select([]) };
  assert.match(
    thrownBy(() => new SelectionPlan(here, none, { merge: true })),
    /^Invalid remote\.length/,
  );
});

test('a selection that is read is not replaced by another one', () => {
  const memory = { kind: 'host', address: 0, length: 4096, name: 'm' } as const;
  const side = { list: DescriptorList.blocks(memory, { blockBytes: 16 }), regions: [memory], owner: 'x' };
  const chosen = new SelectionPlan(side, side, { merge: true });
  const careless = {
    length: 1,
    get 0() {
      chosen.select({ local: [7] });
      return 5;
    },
  };
  assert.throws(() => chosen.select({ local: careless }), { code: 'WL_INVALID_ARGUMENT', message: /no post while/ });
  chosen.select({ local: [3] });
  assert.equal(namedParts(chosen.plan)[0]?.localOffset, 48);
});

/** The message of what it throws, which is WL_INVALID_ARGUMENT. */
function thrownBy(call: () => unknown): string {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof WeftlineError);
    assert.equal(error.code, 'WL_INVALID_ARGUMENT');
    return error.message;
  }
  return assert.fail('it threw nothing');
}

test('blocks of equal shape are one row, however many they are', () => {
  const memory = { kind: 'host', address: 0, length: 2 ** 40, name: 'm' } as const;
  const blocks = DescriptorList.blocks(memory, { blockBytes: 8, stride: 100, count: 1_000_000_000 });
  const side = { list: blocks, regions: [memory], owner: 'x' };
  const { parts } = planTransfer(side, side, { merge: true });
  assert.deepEqual([parts.count, parts.sums().ranges], [1, 1_000_000_000]);
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
      assert.deepEqual(local.runs.lengths, remote.runs.lengths);
      assert.deepEqual(bytesIn(local), bytesIn(here).slice(0, bytes));
      assert.deepEqual(bytesIn(remote), bytesIn(there).slice(0, bytes));
      const same = cutAlike(here, here);
      assert.deepEqual(same.local.runs, here.runs);
      assert.deepEqual(same.remote.runs, here.runs);
    }),
  );
});

test('of the runs of a peer as many ranges are cut as the bytes of this side take', () => {
  const many = DescriptorList.blocks({ kind: 'host', address: 8192, length: 2 ** 34 }, { blockBytes: 4, stride: 8 });
  const remote = DescriptorList.join([many, many]);
  for (const [sizes, expected] of [
    [[10], [4, 4, 2]],
    [
      [4, 4],
      [4, 4],
    ],
    [
      [3, 4],
      [3, 1, 3],
    ],
    [[1], [1]],
  ] as const) {
    const cut = cutAlike(listOfLengths(far, sizes), remote);
    assert.deepEqual(
      entriesOf(cut.remote).map(({ length }) => length),
      expected,
    );
    assert.deepEqual(
      entriesOf(cut.local).map(({ length }) => length),
      expected,
    );
    assert.equal(cut.remote.entry(0).address, 8192);
  }
});
