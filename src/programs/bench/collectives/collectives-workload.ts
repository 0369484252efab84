// What `weftline bench collectives` runs: operations, sizes, how often, and what a time means as a bandwidth.
import { dtypes } from '../../../core/dtype.ts';
import { invalidArgument } from '../../../core/errors.ts';
import type { ReducedDType, Reduction } from '../../../collectives/collective-call.ts';

export const benchedKinds = ['allReduce', 'allGather', 'reduceScatter', 'allToAll', 'broadcast', 'reduce'] as const;
export type BenchedKind = (typeof benchedKinds)[number];

export interface CollectivesWorkload {
  readonly ranks: number;
  readonly kinds: readonly BenchedKind[];
  readonly dtype: ReducedDType;
  readonly op: Reduction;
  readonly minBytes: number;
  readonly maxBytes: number;
  /** The factor from one size to the next. */
  readonly factor: number;
  /** Calls of one size and round; 0: by the size. */
  readonly iterations: number;
  /** Times that all is measured, in turn with the peer; medians count. */
  readonly rounds: number;
}

/** One size: of the larger of a rank's two tensors, as in nccl-tests. */
export interface SizePlan {
  readonly bytes: number;
  readonly warmup: number;
  readonly iterations: number;
}

/** Fails with WL_INVALID_ARGUMENT if nothing is left to measure, or if sizes are not whole elements. */
export function sizePlans({ dtype, minBytes, maxBytes, factor, iterations }: CollectivesWorkload): SizePlan[] {
  const elementBytes = dtypes[dtype].bytes;
  if (minBytes % elementBytes !== 0) {
    throw invalidArgument('--min', minBytes, `a multiple of the ${elementBytes} bytes of an element of ${dtype}`);
  }
  if (minBytes > maxBytes) throw invalidArgument('--min', minBytes, `at most --max, which is ${maxBytes}`);
  const plans: SizePlan[] = [];
  for (let bytes = minBytes; bytes <= maxBytes; bytes *= factor) {
    const count = iterations > 0 ? iterations : iterationsOf(bytes);
    plans.push({ bytes, iterations: count, warmup: Math.max(2, Math.ceil(count / 2)) });
  }
  return plans;
}

function iterationsOf(bytes: number): number {
  if (bytes <= 4096) return 4000;
  if (bytes <= 65_536) return 1500;
  if (bytes <= 1 << 20) return 300;
  return bytes <= 1 << 24 ? 16 : 6;
}

/** Calls of a GPU, which are enqueued behind each other. */
export function cudaIterationsOf(bytes: number): number {
  if (bytes <= 1 << 20) return 200;
  return bytes <= 1 << 26 ? 20 : 6;
}

/** Elements of a rank's part, or of the whole where there are no parts; 0 if the size is too small for the ranks. */
export function countOf(kind: BenchedKind, bytes: number, { ranks, dtype }: CollectivesWorkload): number {
  const elements = Math.floor(bytes / dtypes[dtype].bytes);
  return hasParts(kind) ? Math.floor(elements / ranks) : elements;
}

export function hasParts(kind: string): boolean {
  return kind === 'allGather' || kind === 'reduceScatter' || kind === 'allToAll';
}

/** What a link would carry for each byte of algbw, as nccl-tests count it; 1 of what they do not know. */
export function busFactor(kind: string, ranks: number): number {
  if (kind === 'allReduce') return (2 * (ranks - 1)) / ranks;
  return hasParts(kind) ? (ranks - 1) / ranks : 1;
}
