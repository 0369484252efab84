// What the weights of each expert sum up to, as the ranks found when they loaded them.
import { WeftlineError } from '../../core/errors.ts';
import type { ExpertPlan } from './expert-plan.ts';

export class ExpertChecksums {
  /** [layers, experts] */
  readonly #sums: Float64Array;
  readonly #experts: number;

  /**
   * `told`: by rank, then by layer and slot. Fails with WL_CONFIG_MISMATCH, naming expert and ranks, where copies differ.
   * `worldRanks` are for errors.
   */
  constructor(plan: ExpertPlan, told: readonly (readonly number[])[], worldRanks: readonly number[]) {
    const { layers, experts, physical, ranks, maxReplicas, logicalToPhysical, replicaCounts } = plan;
    const slots = physical / ranks;
    const sumOf = (layer: number, copy: number): number =>
      told[Math.floor(copy / slots)]![layer * slots + (copy % slots)]!;
    this.#experts = experts;
    this.#sums = new Float64Array(layers * experts);
    for (let entry = 0; entry < layers * experts; entry++) {
      const layer = Math.floor(entry / experts);
      const copies = logicalToPhysical.subarray(entry * maxReplicas, entry * maxReplicas + replicaCounts[entry]!);
      const first = copies[0]!;
      const other = copies.find((copy) => sumOf(layer, copy) !== sumOf(layer, first));
      if (other !== undefined) {
        const [one, two] = [first, other].map((copy) => worldRanks[Math.floor(copy / slots)]);
        throw new WeftlineError(
          'WL_CONFIG_MISMATCH',
          `The weights of expert ${entry % experts} of layer ${layer} differ between rank ${one} and rank ${two}`,
          { details: { layer, expert: entry % experts, ranks: [one, two] } },
        );
      }
      this.#sums[entry] = sumOf(layer, first);
    }
  }

  of(layer: number, expert: number): number {
    return this.#sums[layer * this.#experts + expert]!;
  }
}
