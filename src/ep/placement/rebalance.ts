// Expert parallel load balancing (EPLB): more copies for busy experts, and the copies packed onto ranks.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { checkSignal, checkTimeout, waitOptionNames, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { expertPlan, type ExpertPlan } from './expert-plan.ts';
import { readSettings } from '../../settings/settings.ts';
import { WorkerLink } from '../../threads/worker-link.ts';

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

// Items into packs of one size so that their loads differ little.

/**
 * Returns the place of each item: pack * (items / packs) + position in the pack. Items are taken from the heaviest to the
 * lightest, each into the lightest pack that has room. Of equal items the first is taken first, of equal packs the first
 * takes it. Where each pack has one item, items stay in order. With `kinds`, by item, packs that have the kind already take an
 * item only where no other has room.
 */
export function packEvenly(loads: Float64Array, packs: number, kinds?: Int32Array): Int32Array {
  const items = loads.length;
  const size = items / packs;
  if (size === 1) return Int32Array.from(loads, (_, item) => item);
  const order = Array.from(loads, (_, item) => item).toSorted((one, other) => loads[other]! - loads[one]!);
  const sums = new Float64Array(packs);
  const filled = new Int32Array(packs);
  const places = new Int32Array(items);
  const has = Array.from({ length: packs }, () => new Set<number>());
  for (const item of order) {
    let lightest = -1;
    let isOther = false;
    for (let pack = 0; pack < packs; pack++) {
      if (filled[pack] === size) continue;
      const isLacking = kinds !== undefined && !has[pack]!.has(kinds[item]!);
      if (isOther && !isLacking) continue;
      if (lightest === -1 || isLacking !== isOther || sums[pack]! < sums[lightest]!) lightest = pack;
      isOther = isLacking;
    }
    if (kinds !== undefined) has[lightest]!.add(kinds[item]!);
    places[item] = lightest * size + filled[lightest]!;
    filled[lightest] = filled[lightest]! + 1;
    sums[lightest] = sums[lightest]! + loads[item]!;
  }
  return places;
}

// Copies of experts onto ranks: as evenly as they can be packed, and copies of one expert apart, since two on one rank help nobody.

/** Copies to place: which expert each is of, and the load of each. */
interface Copies {
  readonly items: Int32Array;
  readonly loads: Float64Array;
}

/**
 * The place of each copy, as packEvenly() gives it, but that copies of one expert go to different packs wherever the most loaded pack
 * does not get more than there.
 */
export function packApart(copies: Copies, packs: number): Int32Array {
  const even = new Packing(copies, packEvenly(copies.loads, packs), packs);
  if (even.together() === 0) return even.places();
  const most = even.heaviest();
  even.separate(most);
  if (even.together() === 0) return even.places();
  // Another way to begin, which may lead further.
  const apart = new Packing(copies, packEvenly(copies.loads, packs, copies.items), packs);
  apart.lighten(most);
  if (apart.heaviest() > most) return even.places();
  apart.separate(most);
  return apart.together() < even.together() ? apart.places() : even.places();
}

/** Copies in packs, of which two may change places. */
class Packing {
  readonly #copies: Copies;
  readonly #size: number;
  readonly #packs: number;
  /** The copy at each place. */
  readonly #copyAt: Int32Array;
  readonly #sums: Float64Array;
  /** How many copies of each item each pack has. Plans of some 10,000 copies would take seconds if packs were searched. */
  readonly #counts: readonly Map<number, number>[];

  constructor(copies: Copies, places: Int32Array, packs: number) {
    this.#copies = copies;
    this.#packs = packs;
    this.#size = places.length / packs;
    this.#copyAt = new Int32Array(places.length);
    this.#sums = new Float64Array(packs);
    this.#counts = Array.from({ length: packs }, () => new Map<number, number>());
    for (const [copy, place] of places.entries()) {
      this.#copyAt[place] = copy;
      this.#count(place, 1);
    }
    for (let pack = 0; pack < packs; pack++) this.#addUp(pack);
  }

  /** The place of each copy. */
  places(): Int32Array {
    const places = new Int32Array(this.#copyAt.length);
    for (const [place, copy] of this.#copyAt.entries()) places[copy] = place;
    return places;
  }

  heaviest(): number {
    return this.#sums.reduce((one, other) => Math.max(one, other));
  }

  /** Copies that have another one of their expert before them in their pack. */
  together(): number {
    let count = 0;
    for (let place = 0; place < this.#copyAt.length; place++) if (this.#isRepeated(place)) count += 1;
    return count;
  }

  /** Brings copies that are together to other packs, in exchange for others, as long as no pack gets more than `most`. */
  separate(most: number): void {
    for (let isChanged = true; isChanged;) {
      isChanged = false;
      for (let place = 0; place < this.#copyAt.length; place++) {
        if (!this.#isRepeated(place)) continue;
        const other = this.#exchangeOf(place, most);
        if (other < 0) continue;
        this.#swap(place, other);
        isChanged = true;
      }
    }
  }

  /** Exchanges copies of the heaviest pack, without bringing any together, until none has more than `most` or it goes no further. */
  lighten(most: number): void {
    // Sums are rounded: what seems to become lighter may be as heavy afterwards.
    for (let turns = this.#copyAt.length; turns > 0; turns--) {
      const heaviest = this.heaviest();
      if (heaviest <= most) return;
      const pack = this.#sums.indexOf(heaviest);
      let [from, to, least] = [-1, -1, heaviest];
      for (let place = pack * this.#size; place < (pack + 1) * this.#size; place++) {
        const other = this.#exchangeOf(place, least);
        if (other < 0) continue;
        const after = this.#after(place, other);
        if (after >= least) continue;
        [from, to, least] = [place, other, after];
      }
      if (from < 0) return;
      this.#swap(from, to);
    }
  }

  /** The place elsewhere with which this one can be exchanged best, none being together then; -1 if a pack would get more than `most`. */
  #exchangeOf(place: number, most: number): number {
    const [item, pack] = [this.#itemAt(place), this.#packOf(place)];
    let best = -1;
    let least = most;
    for (let other = 0; other < this.#packs; other++) {
      if (other === pack || this.#has(other, item)) continue;
      for (let at = other * this.#size; at < (other + 1) * this.#size; at++) {
        if (this.#has(pack, this.#itemAt(at))) continue;
        const after = this.#after(place, at);
        if (after > least || (after === least && best >= 0)) continue;
        [best, least] = [at, after];
      }
    }
    return best;
  }

  /** What the heavier of both packs would have. */
  #after(one: number, other: number): number {
    const difference = this.#loadAt(other) - this.#loadAt(one);
    return Math.max(this.#sums[this.#packOf(one)]! + difference, this.#sums[this.#packOf(other)]! - difference);
  }

  #swap(one: number, other: number): void {
    for (const place of [one, other]) this.#count(place, -1);
    const copy = this.#copyAt[one]!;
    this.#copyAt[one] = this.#copyAt[other]!;
    this.#copyAt[other] = copy;
    for (const place of [one, other]) this.#count(place, 1);
    this.#addUp(this.#packOf(one));
    this.#addUp(this.#packOf(other));
  }

  #addUp(pack: number): void {
    let sum = 0;
    for (let place = pack * this.#size; place < (pack + 1) * this.#size; place++) sum += this.#loadAt(place);
    this.#sums[pack] = sum;
  }

  #isRepeated(place: number): boolean {
    const item = this.#itemAt(place);
    if (this.#counts[this.#packOf(place)]!.get(item) === 1) return false;
    for (let before = this.#packOf(place) * this.#size; before < place; before++) {
      if (this.#itemAt(before) === item) return true;
    }
    return false;
  }

  #has(pack: number, item: number): boolean {
    return (this.#counts[pack]!.get(item) ?? 0) > 0;
  }

  #count(place: number, more: number): void {
    const counts = this.#counts[this.#packOf(place)]!;
    const item = this.#itemAt(place);
    counts.set(item, (counts.get(item) ?? 0) + more);
  }

  #packOf(place: number): number {
    return Math.floor(place / this.#size);
  }

  #itemAt(place: number): number {
    return this.#copies.items[this.#copyAt[place]!]!;
  }

  #loadAt(place: number): number {
    return this.#copies.loads[this.#copyAt[place]!]!;
  }
}

// What rebalanceExperts() takes, and the checks of it.

const policies = ['hierarchical', 'global'] as const;

/** Whether the experts of a group stay on one node, or any expert may be anywhere. */
type PlacementPolicy = (typeof policies)[number];

/** How many copies there are to place, and on what. */
export interface RebalanceOptions {
  /** Physical experts of a layer in all: each expert once, and the copies of busy ones. A multiple of `ranks`. */
  readonly replicas: number;
  /** Ranks over which the physical experts are divided evenly; a multiple of `nodes`. */
  readonly ranks: number;
  /** Nodes, of which each has as many ranks, in order; 1 by default. */
  readonly nodes?: number;
  /** Groups of experts, contiguous and of one size, from which the router chooses first; 1 by default. */
  readonly groups?: number;
  /**
   * 'hierarchical': each node gets whole groups, so that a token that chooses from few groups goes to few nodes; `groups`
   * must be a multiple of `nodes`, and divide the experts. 'global': regardless of groups and nodes. By default the first
   * where `groups` is a multiple of `nodes`.
   */
  readonly policy?: PlacementPolicy;
}

/** Options with the policy decided: 'global' is the hierarchy of one node that has one group. */
interface RebalanceShape {
  readonly layers: number;
  readonly experts: number;
  readonly replicas: number;
  readonly ranks: number;
  readonly nodes: number;
  readonly groups: number;
}

const optionNames: OptionNames<RebalanceOptions> = {
  replicas: true,
  ranks: true,
  nodes: true,
  groups: true,
  policy: true,
};

/** Far more than models have, and little enough for the memory of tables by physical expert. */
const MAX_REPLICAS = 2 ** 16;

/** Fails with WL_INVALID_ARGUMENT, naming the option, or the layer and expert. */
function checkRebalance(weights: readonly ArrayLike<number>[], options: RebalanceOptions): RebalanceShape {
  checkOptions(options, optionNames, 'options of rebalanceExperts');
  const { layers, experts } = checkWeights(weights);
  const { replicas, ranks, nodes = 1, groups = 1 } = options;
  for (const [name, value] of Object.entries({ replicas, ranks, nodes, groups })) {
    if (!isWhole(value, 1) || value > MAX_REPLICAS)
      throw invalidArgument(name, value, `a whole number from 1 to ${MAX_REPLICAS}`);
  }
  if (ranks % nodes !== 0) throw invalidArgument('ranks', ranks, `a multiple of the ${nodes} nodes`);
  if (replicas < experts || replicas % ranks !== 0) {
    throw invalidArgument('replicas', replicas, `a multiple of the ${ranks} ranks, at least the ${experts} experts`);
  }
  const { policy = groups % nodes === 0 ? 'hierarchical' : 'global' } = options;
  if (!policies.includes(policy)) throw invalidArgument('policy', policy, policies.join(' or '));
  const shape = { layers, experts, replicas, ranks };
  if (policy === 'global') return { ...shape, nodes: 1, groups: 1 };
  if (groups % nodes !== 0) {
    throw invalidArgument('groups', groups, `a multiple of the ${nodes} nodes with policy hierarchical`);
  }
  if (experts % groups !== 0) throw invalidArgument('groups', groups, `a divisor of the ${experts} experts`);
  return { ...shape, nodes, groups };
}

function checkWeights(weights: readonly ArrayLike<number>[]): { readonly layers: number; readonly experts: number } {
  const experts = Array.isArray(weights) ? weights[0]?.length : undefined;
  if (!isWhole(experts, 1)) {
    throw invalidArgument('weights', weights, 'an array with, for each layer, an array with the load of each expert');
  }
  for (const [layer, row] of weights.entries()) {
    if (row?.length !== experts) throw invalidArgument(`weights[${layer}]`, row, `the loads of ${experts} experts`);
    for (let expert = 0; expert < experts; expert++) {
      const load = row[expert];
      if (typeof load === 'number' && Number.isFinite(load) && load >= 0) continue;
      throw invalidArgument(`weights[${layer}][${expert}]`, load, 'a finite number of at least 0');
    }
  }
  return { layers: weights.length, experts };
}

// rebalanceExperts() on a thread of its own, so that the caller's stays free.

/** What the thread is asked. */
interface RebalanceRequest {
  readonly weights: readonly Float64Array[];
  readonly options: RebalanceOptions;
}

export type RebalanceCalls = { rebalance(request: RebalanceRequest): ExpertPlan; stop(): void };

/**
 * The same plan as rebalanceExperts() gives, made by another thread, which the next such call uses again. Fails with
 * WL_INVALID_ARGUMENT before that, with WL_TIMEOUT, and with the signal's reason.
 * @param weights [layers, experts]: the load of each logical expert. They are copied before the call returns.
 * @param options Copies, ranks, nodes, groups.
 * @param wait How long it may take.
 */
export async function rebalanceExpertsAsync(
  weights: readonly ArrayLike<number>[],
  options: RebalanceOptions,
  wait: WaitOptions = {},
): Promise<ExpertPlan> {
  checkRebalance(weights, options);
  checkOptions(wait, waitOptionNames, 'wait options of rebalanceExpertsAsync');
  const timeoutMs = checkTimeout(wait.timeoutMs ?? readSettings().timeoutMs);
  checkSignal(wait.signal);
  const request: RebalanceRequest = { weights: weights.map((row) => Float64Array.from(row)), options: { ...options } };
  const link = new WorkerLink<RebalanceCalls>({
    entry: packageFile('./rebalance-worker.js', import.meta.url),
    name: 'rebalance',
    what: 'thread that rebalances experts',
    closedMessage: 'The thread that rebalances experts has ended',
    data: undefined,
    timeoutMs,
    onEvent: () => undefined,
    onEnd: () => undefined,
  });
  try {
    return await link.callWith({ signal: wait.signal, endsThread: true }, 'rebalance', request);
  } finally {
    // A thread that is busy with a call that nobody waits for is not waited for either.
    void link.stop().catch(() => undefined);
  }
}
