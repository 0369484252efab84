// How often each expert was chosen in the last steps: the weights that rebalanceExperts() takes.
import { requireGroup } from '../../group/tensor-check.ts';
import {
  checkOptions,
  checkRules,
  flag,
  isWhole,
  optional,
  type OptionRules,
  wholeFrom,
} from '../../core/check-options.ts';
import { type WaitOptions, waitOptionNames } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { addSamples, type Sample } from '../../core/metric-table.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { type ExpertIds, Placement, requireIds } from './placement.ts';

/** What is counted, and for how long. */
interface ExpertLoadsOptions {
  /** Layers of the model. */
  readonly layers: number;
  /** Logical experts of a layer. */
  readonly experts: number;
  /** Steps that count; older ones are forgotten. Counts of all of them are kept: 4 * window * layers * experts bytes. */
  readonly window: number;
  /** Counts since the object was made are the metric weftline_ep_expert_tokens_total; false by default. */
  readonly isMetric?: boolean;
}

/** 1 GiB of them. */
const MAX_COUNTS = 2 ** 28;

const optionRules: OptionRules<ExpertLoadsOptions> = {
  layers: wholeFrom(1),
  experts: wholeFrom(1),
  window: wholeFrom(1),
  isMetric: optional(flag),
};

/**
 * Counts of this rank, by layer and logical expert, over a window of steps. A rank counts what its own tokens choose
 * (`addChoices`) or what its experts receive (`addReceived`), the same on all ranks; the sum over the ranks is then the load.
 */
export class ExpertLoads {
  readonly layers: number;
  readonly experts: number;
  readonly window: number;
  /** [window, layers, experts]: the counts of each step, in turn. */
  readonly #steps: Int32Array;
  /** [layers, experts]: of all steps together. */
  readonly #sums: Float64Array;
  /** [layers, experts]: of all steps so far, for metrics; empty without. */
  readonly #totals: Float64Array;
  #step = 0;

  /** Fails with WL_INVALID_ARGUMENT. */
  constructor(options: ExpertLoadsOptions) {
    checkRules(options, optionRules, 'options of ExpertLoads');
    const { layers, experts, window } = options;
    const counts = window * layers * experts;
    if (counts > MAX_COUNTS) throw invalidArgument('window * layers * experts', counts, `at most ${MAX_COUNTS} counts`);
    this.layers = layers;
    this.experts = experts;
    this.window = window;
    this.#steps = new Int32Array(window * layers * experts);
    this.#sums = new Float64Array(layers * experts);
    this.#totals = new Float64Array(options.isMetric === true ? layers * experts : 0);
    if (options.isMetric === true) tellTotals(new WeakRef(this.#totals), experts);
  }

  /** Hot path: no allocation for an Int32Array. Adds the choices [T, K] of this rank's tokens, logical ids, to the present step; others than experts are skipped. */
  addChoices(layer: number, topkIdx: ExpertIds): void {
    this.#checkLayer(layer);
    requireIds('topkIdx', topkIdx);
    for (let at = 0; at < topkIdx.length; at++) {
      const expert = Number(topkIdx[at]);
      if (expert >= 0 && expert < this.experts) this.#add(layer, expert, 1);
    }
  }

  /**
   * Hot path: no allocation. Adds to the present step what this rank's physical experts received, such as
   * `numRecvTokensPerExpert` of a dispatch. Fails with WL_INVALID_ARGUMENT for a placement of other experts, or for counts
   * that are not one whole number for each slot.
   */
  addReceived(layer: number, counts: readonly number[] | Int32Array, placement: Placement): void {
    this.#checkLayer(layer);
    if (!(placement instanceof Placement)) throw invalidArgument('placement', placement, 'a Placement');
    const { plan } = placement;
    if (plan.experts !== this.experts || plan.layers !== this.layers) {
      const expected = `a plan of ${this.layers} layers of ${this.experts} experts`;
      throw invalidArgument('placement', `${plan.layers} layers of ${plan.experts} experts`, expected);
    }
    const logical = placement.localExperts(layer);
    if (counts?.length !== logical.length) {
      throw invalidArgument(
        'counts.length',
        counts?.length,
        `${logical.length}, one for each physical expert of the rank`,
      );
    }
    for (let slot = 0; slot < counts.length; slot++) {
      if (!isWhole(counts[slot], 0))
        throw invalidArgument(`counts[${slot}]`, counts[slot], 'a whole number of at least 0');
    }
    for (let slot = 0; slot < counts.length; slot++) this.#add(layer, logical[slot]!, counts[slot]!);
  }

  /** Ends the present step; the oldest of `window` steps is forgotten. */
  endStep(): void {
    this.#step = (this.#step + 1) % this.window;
    const size = this.#sums.length;
    const first = this.#step * size;
    for (let at = 0; at < size; at++) {
      this.#sums[at] = this.#sums[at]! - this.#steps[first + at]!;
      this.#steps[first + at] = 0;
    }
  }

  /** [layers, experts]: counts of this rank over the window, the present step included. Copies. */
  get own(): Float64Array[] {
    return Array.from({ length: this.layers }, (_, layer) =>
      this.#sums.slice(layer * this.experts, (layer + 1) * this.experts),
    );
  }

  /**
   * Collective: [layers, experts], the sum of the counts of all ranks, the same on every rank. Goes through the group's
   * store: meant for every some hundred steps. Fails as group.allGather() does.
   */
  async gather(group: RankGroup, wait: WaitOptions = {}): Promise<Float64Array[]> {
    requireGroup(group);
    checkOptions(wait, waitOptionNames, 'wait options of ExpertLoads.gather');
    const { layers, experts } = this;
    const all = await group.allGather('ep/expert-loads', { layers, experts, counts: [...this.#sums] }, wait);
    const other = all.findIndex((one) => one.layers !== layers || one.experts !== experts);
    if (other !== -1) throw this.#mismatch(group, other, all[other]!);
    return Array.from({ length: layers }, (_, layer) =>
      Float64Array.from({ length: experts }, (__, expert) =>
        all.reduce((sum, { counts }) => sum + counts[layer * experts + expert]!, 0),
      ),
    );
  }

  #add(layer: number, expert: number, count: number): void {
    const at = layer * this.experts + expert;
    const step = this.#step * this.#sums.length + at;
    this.#steps[step] = this.#steps[step]! + count;
    this.#sums[at] = this.#sums[at]! + count;
    if (at < this.#totals.length) this.#totals[at] = this.#totals[at]! + count;
  }

  #mismatch(
    group: RankGroup,
    other: number,
    theirs: { readonly layers: number; readonly experts: number },
  ): WeftlineError {
    const [rank, own] = [group.ranks[other], group.worldRank];
    return new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks gather ExpertLoads of different shapes: ${this.layers} layers of ${this.experts} experts on rank ${own}, ${theirs.layers} layers of ${theirs.experts} experts on rank ${rank}`,
      { details: { rank, layers: theirs.layers, experts: theirs.experts } },
    );
  }

  #checkLayer(layer: number): void {
    if (!isWhole(layer, 0) || layer >= this.layers) throw invalidArgument('layer', layer, `0 to ${this.layers - 1}`);
  }
}

/** Adds samples of the totals until their object, which nobody closes, is collected. */
function tellTotals(held: WeakRef<Float64Array>, experts: number): void {
  const forget = addSamples(() => {
    const totals = held.deref();
    if (totals === undefined) forget();
    return [...(totals ?? [])].flatMap((value, at): Sample[] => {
      const labels = [String(Math.floor(at / experts)), String(at % experts)];
      return value === 0 ? [] : [{ name: 'weftline_ep_expert_tokens_total', labels, value }];
    });
  });
}
