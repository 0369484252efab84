// Placement: a plan as one rank sees it, and which copy of an expert each of its tokens goes to.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { type ExpertPlan, requirePlan } from './expert-plan.ts';

/** The rank that routes, and the ranks of each host. */
interface PlacementRank {
  /** This rank in the group. */
  readonly rank: number;
  /** The ranks of each host, such as `group.topology.hosts`. */
  readonly hosts: readonly (readonly number[])[];
}

/** Expert ids [T, K] in row-major order: what the view() of a CPU tensor of i32 or i64 is. */
export type ExpertIds = Int32Array | BigInt64Array;

/** Options of Placement.route(). */
interface RouteOptions<Ids extends ExpertIds = ExpertIds> {
  /** 0 by default. */
  readonly layer?: number;
  /** Array for the physical ids, of the type and length of `topkIdx`, which it may be. A new array by default. */
  readonly out?: Ids;
}

const rankNames: OptionNames<PlacementRank> = { rank: true, hosts: true };
const routeNames: OptionNames<RouteOptions> = { layer: true, out: true };

/**
 * What turns a router's choices into physical experts. A choice goes to the nearest copies of its expert: those on this
 * rank, else those on its host, else all. Among these the rank's tokens that choose the expert take turns: the n-th of a
 * call, in the order of tokens and counted from 0, takes copy (n + rank) modulo their number, in ascending order of copies.
 * So the same choices always give the same physical experts.
 *
 * `plan.physical` is the number of experts (`numExperts`) that EpBuffer and EPAll2AllLayer are made for;
 * their local expert i is physical expert rank * `slots` + i. No token gets a physical expert twice, as long as it chooses
 * no logical expert twice.
 */
export class Placement {
  readonly plan: ExpertPlan;
  readonly rank: number;
  /** Physical experts of each rank. */
  readonly slots: number;
  readonly #nearest: NearestCopies;
  /** [experts]: whose turn it is, while route() runs. */
  readonly #turns: Int32Array;

  /** Fails with WL_INVALID_ARGUMENT unless the hosts have every rank of the plan once. */
  constructor(plan: ExpertPlan, where: PlacementRank) {
    requirePlan(plan);
    checkOptions(where, rankNames, 'second argument of Placement');
    const { rank, hosts } = where;
    if (!Array.isArray(hosts) || !hosts.every((host) => Array.isArray(host))) {
      throw invalidArgument('hosts', hosts, 'an array with the ranks of each host, such as group.topology.hosts');
    }
    const ranks: readonly unknown[] = hosts.flat();
    if (ranks.length !== plan.ranks || !ranks.every((_, index) => ranks.includes(index))) {
      throw invalidArgument('hosts', ranks, `ranks 0 to ${plan.ranks - 1} of the plan, each once`);
    }
    if (!isWhole(rank, 0) || rank >= plan.ranks) throw invalidArgument('rank', rank, `0 to ${plan.ranks - 1}`);
    this.plan = plan;
    this.rank = rank;
    this.slots = plan.physical / plan.ranks;
    this.#nearest = nearestCopies(plan, rank, hosts.find((host) => host.includes(rank)) as readonly number[]);
    this.#turns = new Int32Array(plan.experts);
  }

  /** The logical experts of this rank's slots in a layer: entry i is that of local expert i. A view of the plan's table. */
  localExperts(layer = 0): Int32Array {
    this.#checkLayer(layer);
    const first = layer * this.plan.physical + this.rank * this.slots;
    return this.plan.physicalToLogical.subarray(first, first + this.slots);
  }

  /** The copies of a logical expert that this rank's choices go to, ascending. A view of a table of its own. */
  nearestCopies(layer: number, expert: number): Int32Array {
    this.#checkLayer(layer);
    const { experts } = this.plan;
    if (!isWhole(expert, 0) || expert >= experts) throw invalidArgument('expert', expert, `0 to ${experts - 1}`);
    const { starts, copies } = this.#nearest;
    return copies.subarray(starts[layer * experts + expert], starts[layer * experts + expert + 1]);
  }

  /**
   * Hot path: makes no array of ids if `out` is given. Physical experts [T, K] for choices [T, K] of logical ones. A choice of
   * none (-1, or the number of logical experts) becomes -1. Fails with WL_INVALID_ARGUMENT for other ids, before anything
   * is written.
   */
  route<Ids extends ExpertIds>(topkIdx: Ids, options: RouteOptions<Ids> = {}): Ids {
    checkOptions(options, routeNames, 'options of route');
    requireIds('topkIdx', topkIdx);
    const { layer = 0, out = topkIdx.slice() as Ids } = options;
    this.#checkLayer(layer);
    requireIds('out', out);
    if (out.length !== topkIdx.length || out.constructor !== topkIdx.constructor) {
      const expected = `${topkIdx.length} elements in a ${topkIdx.constructor.name}`;
      throw invalidArgument('out', `${out.length} in a ${out.constructor.name}`, expected);
    }
    const { experts } = this.plan;
    const stride = topkIdx instanceof BigInt64Array ? 2 : 1;
    const from = wordsOf(topkIdx);
    const to = wordsOf(out);
    checkIds(from, stride, experts);
    const { starts, copies } = this.#nearest;
    const turns = this.#turns.fill(this.rank);
    for (let at = 0; at < from.length; at += stride) {
      const expert = from[at]!;
      let physical = -1;
      if (expert >= 0 && expert < experts) {
        const start = starts[layer * experts + expert]!;
        const count = starts[layer * experts + expert + 1]! - start;
        physical = copies[start + (turns[expert]! % count)]!;
        turns[expert] = turns[expert]! + 1;
      }
      to[at] = physical;
      if (stride === 2) to[at + 1] = physical >> 31;
    }
    return out;
  }

  #checkLayer(layer: number): void {
    const { layers } = this.plan;
    if (!isWhole(layer, 0) || layer >= layers) throw invalidArgument('layer', layer, `0 to ${layers - 1}`);
  }
}

export function requireIds(name: string, ids: unknown): void {
  if (ids instanceof Int32Array || ids instanceof BigInt64Array) return;
  throw invalidArgument(name, ids, 'an Int32Array or a BigInt64Array');
}

/** 64-bit ids as pairs of words, the lower one first: no BigInt is made for them. */
function wordsOf(ids: ExpertIds): Int32Array {
  return ids instanceof Int32Array ? ids : new Int32Array(ids.buffer, ids.byteOffset, ids.length * 2);
}

function checkIds(words: Int32Array, stride: number, experts: number): void {
  for (let at = 0; at < words.length; at += stride) {
    const id = words[at]!;
    const isWide = stride === 2 && words[at + 1] !== id >> 31;
    if (id >= -1 && id <= experts && !isWide) continue;
    const value = stride === 2 ? BigInt.asIntN(64, (BigInt(words[at + 1]!) << 32n) | BigInt(id >>> 0)) : id;
    throw invalidArgument(`topkIdx[${at / stride}]`, value, `-1 to ${experts}; ${experts} and -1 are no expert`);
  }
}

// The copies of each expert that are nearest to one rank.

interface NearestCopies {
  /** [layers * experts + 1]: where the copies of each expert of each layer begin in `copies`. */
  readonly starts: Int32Array;
  /** Physical experts, ascending for each expert: all on the rank, or all on its host, or all there are. */
  readonly copies: Int32Array;
}

/** `host`: the ranks of the rank's host, itself among them. */
function nearestCopies(plan: ExpertPlan, rank: number, host: readonly number[]): NearestCopies {
  const { layers, experts, ranks, physical, maxReplicas, logicalToPhysical, replicaCounts } = plan;
  const slots = physical / ranks;
  const distances = Int32Array.from({ length: ranks }, (_, other) => {
    if (other === rank) return 0;
    return host.includes(other) ? 1 : 2;
  });
  const distanceOf = (copy: number): number => distances[Math.floor(copy / slots)]!;
  const starts = new Int32Array(layers * experts + 1);
  const copies = new Int32Array(layers * physical);
  let end = 0;
  for (let entry = 0; entry < layers * experts; entry++) {
    const first = entry * maxReplicas;
    const all = logicalToPhysical.subarray(first, first + replicaCounts[entry]!);
    let least = 2;
    for (const copy of all) least = Math.min(least, distanceOf(copy));
    for (const copy of all) if (distanceOf(copy) === least) copies[end++] = copy;
    starts[entry + 1] = end;
  }
  return { starts, copies: copies.slice(0, end) };
}
