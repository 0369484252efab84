// rebalanceExperts() and Placement.route() against plain implementations of their descriptions, over random cases.
import assert from 'node:assert/strict';
import test from 'node:test';
import { expertPlan, type ExpertPlan, Placement, rebalanceExperts } from 'weftline/ep/placement';
import fc from '../support/fast-check.ts';

interface Item {
  readonly index: number;
  readonly load: number;
}

/** Packs of items, each in the order in which they were put in. */
function pack(items: readonly Item[], count: number): Item[][] {
  const packs: Item[][] = Array.from({ length: count }, () => []);
  const size = items.length / count;
  if (size === 1) return items.map((item) => [item]);
  const sum = (list: readonly Item[]): number => list.reduce((total, { load }) => total + load, 0);
  for (const item of items.toSorted((one, other) => other.load - one.load || one.index - other.index)) {
    const open = packs.filter((list) => list.length < size);
    open.toSorted((one, other) => sum(one) - sum(other))[0]!.push(item);
  }
  return packs;
}

function plainRebalance(
  loads: readonly number[],
  shape: { replicas: number; ranks: number; nodes: number; groups: number },
): number[] {
  const { replicas, ranks, nodes, groups } = shape;
  const size = loads.length / groups;
  const groupItems = Array.from({ length: groups }, (_, index) => {
    const members = loads.slice(index * size, (index + 1) * size);
    return { index, load: members.reduce((sum, load) => sum + load, 0) };
  });
  return pack(groupItems, nodes).flatMap((list) => {
    const experts = list.flatMap(({ index }) => Array.from({ length: size }, (_, at) => index * size + at));
    const copies = [...experts];
    const copiesOf = (expert: number): number => copies.filter((other) => other === expert).length;
    while (copies.length < replicas / nodes) {
      const order = experts.toSorted((one, other) => {
        const byLoad = loads[other]! / copiesOf(other) - loads[one]! / copiesOf(one);
        return byLoad || copiesOf(one) - copiesOf(other) || experts.indexOf(one) - experts.indexOf(other);
      });
      copies.push(order[0]!);
    }
    const items = copies.map((expert, index) => ({ index, load: loads[expert]! / copiesOf(expert) }));
    return pack(items, ranks / nodes).flatMap((packed) => packed.map(({ index }) => copies[index]!));
  });
}

const rebalanceCase = fc
  .record({
    nodes: fc.integer({ min: 1, max: 3 }),
    ranksPerNode: fc.integer({ min: 1, max: 4 }),
    groupsPerNode: fc.integer({ min: 1, max: 3 }),
    groupSize: fc.integer({ min: 1, max: 4 }),
    spare: fc.integer({ min: 0, max: 3 }),
  })
  .chain(({ nodes, ranksPerNode, groupsPerNode, groupSize, spare }) => {
    const groups = nodes * groupsPerNode;
    const ranks = nodes * ranksPerNode;
    const experts = groups * groupSize;
    const replicas = ranks * (Math.ceil(experts / ranks) + spare);
    // Whole loads, some of them alike: sums are exact, and ties are tried.
    const loads = fc.array(fc.nat({ max: 20 }), { minLength: experts, maxLength: experts });
    return fc.record({
      shape: fc.constant({ nodes, ranks, groups, replicas }),
      layers: fc.array(loads, { minLength: 1, maxLength: 2 }),
    });
  });

const byNumber = (one: number, other: number): number => one - other;

function cut(experts: readonly number[], parts: number): number[][] {
  const size = experts.length / parts;
  return Array.from({ length: parts }, (_, part) => experts.slice(part * size, (part + 1) * size));
}

/** Copies that have another one of their expert before them on their rank. */
function together(experts: readonly number[], ranks: number): number {
  return cut(experts, ranks).reduce((count, here) => count + here.length - new Set(here).size, 0);
}

test('rebalanceExperts() is what its description says, for random loads and shapes', () => {
  fc.assert(
    fc.property(rebalanceCase, ({ shape, layers }) => {
      const plan = rebalanceExperts(layers, shape);
      for (const [layer, loads] of layers.entries()) {
        const found = [...plan.physicalToLogical.subarray(layer * plan.physical, (layer + 1) * plan.physical)];
        const plain = plainRebalance(loads, shape);
        if (together(plain, shape.ranks) === 0) assert.deepEqual(found, plain);
        // Otherwise copies of a node have changed places, to lie apart, and its most loaded rank has no more than before.
        assert.ok(together(found, shape.ranks) <= together(plain, shape.ranks));
        const [nodes, plainNodes] = [found, plain].map((experts) => cut(experts, shape.nodes)) as [
          number[][],
          number[][],
        ];
        for (const [node, experts] of nodes.entries()) {
          assert.deepEqual(experts.toSorted(byNumber), plainNodes[node]!.toSorted(byNumber));
          const most = (of: readonly number[]): number =>
            Math.max(
              ...cut(of, shape.ranks / shape.nodes).map((here) =>
                here.reduce((sum, expert) => sum + loads[expert]! / plain.filter((one) => one === expert).length, 0),
              ),
            );
          assert.ok(most(experts) <= most(plainNodes[node]!) + 1e-9);
        }
      }
      // Hierarchical: the copies of a group are all on one node.
      const size = plan.experts / shape.groups;
      const perNode = plan.physical / shape.nodes;
      const nodeOfGroup = new Map<string, number>();
      for (const [at, expert] of plan.physicalToLogical.entries()) {
        const key = `${Math.floor(at / plan.physical)}/${Math.floor(expert / size)}`;
        const node = Math.floor((at % plan.physical) / perNode);
        assert.equal(nodeOfGroup.get(key) ?? node, node);
        nodeOfGroup.set(key, node);
      }
    }),
    { numRuns: 200 },
  );
});

function plainRoute(
  plan: ExpertPlan,
  where: { rank: number; hosts: readonly number[][] },
  ids: readonly number[],
  layer: number,
): number[] {
  const { rank, hosts } = where;
  const slots = plan.physical / plan.ranks;
  const table = [...plan.physicalToLogical.subarray(layer * plan.physical, (layer + 1) * plan.physical)];
  const host = hosts.find((ranks) => ranks.includes(rank))!;
  return ids.map((expert, at) => {
    if (expert < 0 || expert >= plan.experts) return -1;
    const all = table.flatMap((logical, physical) => (logical === expert ? [physical] : []));
    const here = all.filter((physical) => Math.floor(physical / slots) === rank);
    const near = all.filter((physical) => host.includes(Math.floor(physical / slots)));
    const nearest = [here, near, all].find((list) => list.length > 0)!;
    const earlier = ids.slice(0, at).filter((other) => other === expert).length;
    return nearest[(earlier + rank) % nearest.length]!;
  });
}

const routeCase = fc
  .record({
    hostSizes: fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 3 }),
    slots: fc.integer({ min: 1, max: 4 }),
    layers: fc.integer({ min: 1, max: 2 }),
  })
  .chain(({ hostSizes, slots, layers }) => {
    const ranks = hostSizes.reduce((sum, size) => sum + size, 0);
    const physical = ranks * slots;
    return fc.record({
      // Ranks of a host need not be neighbours.
      order: fc.shuffledSubarray(
        Array.from({ length: ranks }, (_, rank) => rank),
        { minLength: ranks },
      ),
      hostSizes: fc.constant(hostSizes),
      layers: fc.constant(layers),
      experts: fc.integer({ min: 1, max: physical }),
      filler: fc.array(fc.nat(), { minLength: layers * physical, maxLength: layers * physical }),
      isWide: fc.boolean(),
      choices: fc.array(fc.integer({ min: -1, max: physical }), { maxLength: 60 }),
    });
  });

test('route() is what its description says, on every rank, for random plans, hosts and choices', () => {
  fc.assert(
    fc.property(routeCase, ({ order, hostSizes, layers, experts, filler, isWide, choices }) => {
      const ranks = order.length;
      const physical = filler.length / layers;
      const physicalToLogical = filler.map((value, at) => {
        const place = (at * 7) % physical;
        // Each expert once, at scattered places if 7 allows it, then any.
        const first = physical % 7 === 0 ? at % physical : place;
        return first < experts ? first : value % experts;
      });
      const plan = expertPlan({ layers, experts, ranks, physicalToLogical });
      let taken = 0;
      const hosts = hostSizes.map((size) => order.slice(taken, (taken += size)));
      const ids = choices.map((id) => Math.min(id, experts));
      for (let rank = 0; rank < ranks; rank++) {
        const placement = new Placement(plan, { rank, hosts });
        for (let layer = 0; layer < layers; layer++) {
          const given = isWide ? BigInt64Array.from(ids, BigInt) : Int32Array.from(ids);
          const got = [...placement.route(given, { layer })].map(Number);
          assert.deepEqual(got, plainRoute(plan, { rank, hosts }, ids, layer));
          for (const [at, id] of got.entries()) {
            if (id >= 0) assert.equal(plan.physicalToLogical[layer * physical + id], ids[at]);
          }
        }
      }
    }),
    { numRuns: 200 },
  );
});
