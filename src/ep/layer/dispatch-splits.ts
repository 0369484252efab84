// What the ranks tell each other before a layer's dispatch, and where rows will begin, in Triton-distributed's terms.
import type { EPConfig } from './ep-config.ts';

/** Who sends how much to which expert: the same on all ranks, in arrays of the host. */
export interface DispatchSplits {
  /** [world, experts + 1]: choices of each expert by each rank; the last column holds dropped ones. */
  readonly fullSplits: Int32Array;
  /** [world] */
  readonly numInputTokensPerRank: Int32Array;
  /** [world, experts of a rank, world]: by receiver, its expert and sender, the row where the sender's rows begin. */
  readonly recvBufOffsetPerExpert: Int32Array;
  /** [world] */
  readonly numRecvTokensPerRank: Int32Array;
}

/** What every rank has of all ranks. */
export interface GatheredCounts {
  /** i32 [world] */
  readonly numTokens: Int32Array;
  /** i32 [world, experts] */
  readonly perExpert: Int32Array;
}

/** Pure. */
export function dispatchSplits(
  { worldSize, numExperts, numExpertsPerRank, maxTopk: topk }: EPConfig,
  { numTokens, perExpert }: GatheredCounts,
): DispatchSplits {
  const fullSplits = new Int32Array(worldSize * (numExperts + 1));
  for (let source = 0; source < worldSize; source++) {
    const row = perExpert.subarray(source * numExperts, (source + 1) * numExperts);
    const chosen = row.reduce((sum, count) => sum + count, 0);
    fullSplits.set(row, source * (numExperts + 1));
    fullSplits[source * (numExperts + 1) + numExperts] = numTokens[source]! * topk - chosen;
  }
  const recvBufOffsetPerExpert = new Int32Array(numExperts * worldSize);
  const numRecvTokensPerRank = new Int32Array(worldSize);
  for (let expert = 0; expert < numExperts; expert++) {
    const owner = Math.floor(expert / numExpertsPerRank);
    for (let source = 0; source < worldSize; source++) {
      recvBufOffsetPerExpert[expert * worldSize + source] = numRecvTokensPerRank[owner]!;
      numRecvTokensPerRank[owner]! += perExpert[source * numExperts + expert]!;
    }
  }
  const numInputTokensPerRank = Int32Array.from(numTokens);
  return { fullSplits, numInputTokensPerRank, recvBufOffsetPerExpert, numRecvTokensPerRank };
}
