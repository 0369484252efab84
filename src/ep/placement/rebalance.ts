// Expert parallel load balancing (EPLB): more copies for busy experts, and the copies packed onto ranks.
import { expertPlan, type ExpertPlan } from './expert-plan.ts';
import { packEvenly } from './pack-evenly.ts';
import { type Copies, packApart } from './separate-copies.ts';
import { checkRebalance, type RebalanceOptions, type RebalanceShape } from './rebalance-options.ts';

/**
 * Where copies of the experts should be for such a load, by the algorithm of DeepSeek's EPLB
 * (deepseek-ai/EPLB, `rebalance_experts`): groups of experts are packed
 * onto nodes; on each node the expert with most load per copy gets another copy, until there are `replicas`; copies are
 * packed onto the ranks of the node. Packing takes the heaviest item first and puts it into the lightest pack with room. Beyond
 * EPLB, copies of one expert that came to lie on one rank are then exchanged for others, where no rank gets more load than the most
 * loaded one had.
 *
 * The same input gives the same plan. Of equal loads per copy the expert with fewer copies is taken, then the first; ties
 * of packing go to the first item and the first pack. Runs on this thread: 61 layers of 256 experts take some tens of
 * milliseconds; rebalanceExpertsAsync() does it elsewhere. Fails with WL_INVALID_ARGUMENT.
 * @param weights [layers, experts]: the load of each logical expert, in any unit, 0 or more.
 * @param options Copies, ranks, nodes, groups.
 */
export function rebalanceExperts(weights: readonly ArrayLike<number>[], options: RebalanceOptions): ExpertPlan {
  const shape = checkRebalance(weights, options);
  const { layers, experts, ranks, replicas } = shape;
  const physicalToLogical = new Int32Array(layers * replicas);
  for (const [layer, loads] of weights.entries()) {
    placeLayer(loads, shape, physicalToLogical.subarray(layer * replicas, (layer + 1) * replicas));
  }
  return expertPlan({ layers, experts, ranks, physicalToLogical });
}

/** Writes the logical expert of each physical one. */
function placeLayer(loads: ArrayLike<number>, shape: RebalanceShape, physicalToLogical: Int32Array): void {
  const { nodes, ranks, replicas } = shape;
  const byNode = expertsByNode(loads, shape);
  const perNode = replicas / nodes;
  for (const [node, experts] of byNode.entries()) {
    const copied = chooseCopies(
      Float64Array.from(experts, (expert) => loads[expert]!),
      perNode,
    );
    const places = packApart(copied, ranks / nodes);
    for (const [copy, place] of places.entries()) {
      physicalToLogical[node * perNode + place] = experts[copied.items[copy]!]!;
    }
  }
}

/** The logical experts of each node: groups that are packed by the sum of their loads. */
function expertsByNode(loads: ArrayLike<number>, { experts, groups, nodes }: RebalanceShape): readonly Int32Array[] {
  const groupSize = experts / groups;
  const groupLoads = new Float64Array(groups);
  for (let expert = 0; expert < experts; expert++) {
    const group = Math.floor(expert / groupSize);
    groupLoads[group] = groupLoads[group]! + loads[expert]!;
  }
  const places = packEvenly(groupLoads, nodes);
  const ordered = new Int32Array(experts);
  for (let expert = 0; expert < experts; expert++) {
    const group = Math.floor(expert / groupSize);
    ordered[places[group]! * groupSize + (expert % groupSize)] = expert;
  }
  const perNode = experts / nodes;
  return Array.from({ length: nodes }, (_, node) => ordered.subarray(node * perNode, (node + 1) * perNode));
}

/** First a copy of each item, then further ones in the order in which they were needed; the load of each is that of its item divided by its copies. */
function chooseCopies(loads: Float64Array, count: number): Copies {
  const items = new Int32Array(count);
  const copies = new Int32Array(loads.length).fill(1);
  const perCopy = loads.slice();
  for (let copy = 0; copy < count; copy++) {
    const isFirst = copy < loads.length;
    const item = isFirst ? copy : busiest(perCopy, copies);
    items[copy] = item;
    if (isFirst) continue;
    const number = copies[item]! + 1;
    copies[item] = number;
    perCopy[item] = loads[item]! / number;
  }
  return { items, loads: Float64Array.from(items, (item) => perCopy[item]!) };
}

function busiest(perCopy: Float64Array, copies: Int32Array): number {
  let best = 0;
  for (let item = 1; item < perCopy.length; item++) {
    const difference = perCopy[item]! - perCopy[best]!;
    if (difference > 0 || (difference === 0 && copies[item]! < copies[best]!)) best = item;
  }
  return best;
}
