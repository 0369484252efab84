// The copies of each expert that are nearest to one rank.
import type { ExpertPlan } from './expert-plan.ts';

export interface NearestCopies {
  /** [layers * experts + 1]: where the copies of each expert of each layer begin in `copies`. */
  readonly starts: Int32Array;
  /** Physical experts, ascending for each expert: all on the rank, or all on its host, or all there are. */
  readonly copies: Int32Array;
}

/** `host`: the ranks of the rank's host, itself among them. */
export function nearestCopies(plan: ExpertPlan, rank: number, host: readonly number[]): NearestCopies {
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
