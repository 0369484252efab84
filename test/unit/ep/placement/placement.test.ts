import assert from 'node:assert/strict';
import test from 'node:test';
import { expertPlan, Placement } from 'weftline/ep/placement';
import { withCode } from '../../../support/with-code.ts';

/** 4 ranks with 2 slots: expert 0 on ranks 0, 1 and 3 (twice), expert 1 on rank 2, expert 2 on rank 0, expert 3 on ranks 1 and 2. */
const plan = expertPlan({ layers: 1, experts: 4, ranks: 4, physicalToLogical: [0, 2, 0, 3, 1, 3, 0, 0] });
const hosts = [
  [0, 1],
  [2, 3],
];

const invalid = (words: RegExp): ReturnType<typeof withCode> => withCode('WL_INVALID_ARGUMENT', words);

function routed(rank: number, ...ids: readonly number[]): readonly number[] {
  return [...new Placement(plan, { rank, hosts }).route(Int32Array.from(ids))];
}

test('route() takes a copy on the rank, else on its host, else anywhere, in turn', () => {
  assert.deepEqual(routed(0, 0, 0, 0), [0, 0, 0]);
  assert.deepEqual(routed(0, 3, 3), [3, 3]); // rank 1 is on the same host, rank 2 is not
  assert.deepEqual(routed(2, 0, 0, 0), [6, 7, 6]); // rank 3, both copies in turn
  assert.deepEqual(routed(3, 0, 0, 0), [7, 6, 7]); // rank 3 begins with the second
  assert.deepEqual(routed(0, 1, 1), [4, 4]);
});

test('turns are counted by expert and begin anew with each call', () => {
  const placement = new Placement(plan, { rank: 2, hosts });
  const ids = Int32Array.of(0, 1, 3, 0, -1, 0, 4, 2);
  assert.deepEqual([...placement.route(ids)], [6, 4, 5, 7, -1, 6, -1, 1]);
  assert.deepEqual([...placement.route(ids)], [6, 4, 5, 7, -1, 6, -1, 1]);
  assert.deepEqual([...placement.localExperts()], [1, 3]);
  assert.equal(placement.slots, 2);
});

test('64-bit ids give 64-bit ids, also in place', () => {
  const placement = new Placement(plan, { rank: 2, hosts });
  const ids = BigInt64Array.of(0n, 1n, -1n, 0n, 4n);
  assert.equal(placement.route(ids, { out: ids }), ids);
  assert.deepEqual([...ids], [6n, 4n, -1n, 7n, -1n]);
});

test('wrong ids are named, and nothing is written', () => {
  const placement = new Placement(plan, { rank: 0, hosts });
  const ids = Int32Array.of(1, 5);
  assert.throws(() => placement.route(ids, { out: ids }), withCode('WL_INVALID_ARGUMENT', /topkIdx\[1\].* got 5/));
  assert.deepEqual([...ids], [1, 5]);
  const wide = BigInt64Array.of(1n, 2n ** 32n);
  assert.throws(() => placement.route(wide), withCode('WL_INVALID_ARGUMENT', /topkIdx\[1\].* got 4294967296n/));
  const negative = BigInt64Array.of(-2n);
  assert.throws(() => placement.route(negative), withCode('WL_INVALID_ARGUMENT', /got -2n/));
  assert.throws(() => placement.route(ids, { out: new Int32Array(1) }), withCode('WL_INVALID_ARGUMENT', /out: /));
  assert.throws(() => placement.route(ids, { layer: 1 }), withCode('WL_INVALID_ARGUMENT', /layer: expected 0 to 0/));
  assert.throws(() => placement.route([1] as never), withCode('WL_INVALID_ARGUMENT', /topkIdx/));
});

test('what is no plan, no hosts and no ids is named', () => {
  assert.throws(() => new Placement({} as never, { rank: 0, hosts }), invalid(/plan: expected a plan of expertPlan/));
  assert.throws(
    () => new Placement(plan, { rank: 0, hosts: [0, 1] } as never),
    invalid(/hosts: expected an array with/),
  );
  assert.throws(
    () =>
      new Placement(plan, {
        rank: 0,
        hosts: [
          [0, 1],
          [2n, 3],
        ],
      } as never),
    invalid(/hosts: expected ranks 0 to/),
  );
  assert.throws(() => new Placement(plan, {} as never), invalid(/hosts: /));
  const placement = new Placement(plan, { rank: 0, hosts });
  assert.throws(() => placement.route(undefined as never), invalid(/topkIdx: expected an Int32Array/));
  assert.throws(() => placement.route(Int32Array.of(0), { out: {} as never }), invalid(/out: expected an Int32Array/));
});

test('a plan whose tables do not fit its numbers is refused', () => {
  const where = { rank: 0, hosts };
  for (const [name, values] of Object.entries({
    layers: [2, 0, -1, 1.5, undefined, 'one', 2 ** 31],
    experts: [5, 0, null, {}],
    ranks: [3, 0, 2n, Symbol('ranks')],
    physical: [4, 16, -8, Number.NaN],
    maxReplicas: [0, 1, 2 ** 53, '4'],
    physicalToLogical: [[], new Int32Array(7), new Float64Array(8)],
    logicalToPhysical: [undefined, new Int32Array(1)],
    replicaCounts: [undefined, null, new Int32Array(3)],
  })) {
    for (const value of values as readonly unknown[]) {
      assert.throws(() => new Placement({ ...plan, [name]: value }, where), invalid(/plan: expected a plan of/), name);
    }
  }
  assert.equal(new Placement({ ...plan }, where).slots, 2, 'a copy is as good');
});

test('what a table of experts cannot hold is named, also numbers of other types', () => {
  const shape = { layers: 1, experts: 2, ranks: 2 };
  for (const entry of [1n, Symbol('one'), '1', null, {}, -1, 2]) {
    const physicalToLogical = [0, entry] as never;
    assert.throws(
      () => expertPlan({ ...shape, physicalToLogical }),
      invalid(/physicalToLogical\[0\]\[1\]: expected an/),
    );
  }
  const wide = { ...shape, physicalToLogical: BigInt64Array.of(0n, 1n) as never };
  assert.throws(() => expertPlan(wide), invalid(/physicalToLogical\[0\]\[0\]: expected an expert, 0 to 1, got 0n/));
  for (const layers of [1n, Symbol('one'), '1', {}]) {
    assert.throws(() => expertPlan({ ...shape, layers: layers as never }), invalid(/layers: expected a whole/));
  }
});

test('tables of a plan have bounds', () => {
  assert.throws(() => expertPlan({ layers: 1, experts: 2 ** 40, ranks: 1 }), invalid(/at most the 16777216 entries/));
  assert.throws(() => expertPlan({ layers: 2 ** 30, experts: 2 ** 30, ranks: 1 }), invalid(/at most the/));
  assert.throws(() => expertPlan({ layers: 1, experts: 3, ranks: 2 }), invalid(/multiple of 2 physical experts/));
  assert.throws(() => expertPlan(undefined as never), invalid(/options of expertPlan: expected an object/));
  assert.throws(
    () => expertPlan({ layers: 1, experts: 1, ranks: 1, physicalToLogical: null as never }),
    invalid(/physicalToLogical/),
  );
  const copies = { length: 2 ** 20, 0: 0 } as ArrayLike<number>;
  const one = Int32Array.from(copies, (_, at) => (at < 2 ** 10 ? at : 0));
  assert.throws(
    () => expertPlan({ layers: 1, experts: 2 ** 10, ranks: 1, physicalToLogical: one }),
    invalid(/maxReplicas \* layers \* experts: expected at most/),
  );
});

test('a placement needs every rank of its plan on one host', () => {
  for (const where of [
    { rank: 0, hosts: [[0, 1, 2]] },
    {
      rank: 0,
      hosts: [
        [0, 1],
        [1, 2, 3],
      ],
    },
    { rank: 4, hosts },
  ]) {
    assert.throws(() => new Placement(plan, where), withCode('WL_INVALID_ARGUMENT'));
  }
});
