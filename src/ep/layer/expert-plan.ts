// Finds out from everyone's counts where the rows of each (expert, source rank) stand in the outputs, grouped by expert.
import { type ErrorDetails, WeftlineError } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { ExchangeResult } from '../../group/exchange.ts';
import type { EPConfig } from './ep-config.ts';
import { capacityError } from '../buffer/dispatch-layout.ts';

export interface ExpertPlan {
  /** i32 [experts]: the row, at the expert's rank, of this rank's first token for it. */
  readonly firstRow: Int32Array;
  /** i32 [experts]: the row where the expert's block starts at its rank. */
  readonly blockStart: Int32Array;
  /** i32 [experts]: rows of the expert's block. */
  readonly blockRows: Int32Array;
  /** Rows that each rank receives. */
  readonly recvRows: Int32Array;
  /** i32 [ranks]: rows of all lower ranks together, where the rank starts in the flattened output of all. */
  readonly flattenedStart: Int32Array;
}

/** Every rank fails with the same WL_CAPACITY if one would get more rows than its own bound. `ranks`: world ranks, for errors. */
export function requireRowBounds(
  { rowBound }: ExchangeResult,
  { recvRows }: ExpertPlan,
  ranks: readonly number[],
): void {
  const over = recvRows.findIndex((rows, rank) => rowBound[rank] !== 0 && rows > rowBound[rank]!);
  if (over !== -1) throw layerCapacityError(ranks[over]!, { rows: recvRows[over]!, bound: rowBound[over]! });
}

export function layerCapacityError(
  rank: number,
  counts: { readonly rows: number; readonly bound: number },
): WeftlineError {
  return capacityError(rank, counts, 'the choices that can fall on its experts');
}

/** Pure. Rows stand by local expert, then source rank, then token. */
export function planExperts(exchange: ExchangeResult, rank: number, experts: number): ExpertPlan {
  const n = exchange.numTokens.length;
  const perRank = experts / n;
  const plan = {
    firstRow: new Int32Array(experts),
    blockStart: new Int32Array(experts),
    blockRows: new Int32Array(experts),
    recvRows: new Int32Array(n),
    flattenedStart: new Int32Array(n),
  };
  let flattened = 0;
  for (let owner = 0; owner < n; owner++) {
    let row = 0;
    plan.flattenedStart[owner] = flattened;
    for (let expert = owner * perRank; expert < (owner + 1) * perRank; expert++) {
      plan.blockStart[expert] = row;
      for (let source = 0; source < n; source++) {
        if (source === rank) plan.firstRow[expert] = row;
        row += exchange.perExpert[source * experts + expert]!;
      }
      plan.blockRows[expert] = row - plan.blockStart[expert]!;
    }
    plan.recvRows[owner] = row;
    flattened += row;
  }
  return plan;
}

// What the ranks tell each other before a layer's dispatch, and where rows will begin, in Triton-distributed's terms.

/** How much each rank sends to each expert: the same on all ranks, in arrays of the host. */
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

// Caller-given places: full scatter indices number the rows of all ranks' outputs as one; here they become local rows.

interface ScatterInput {
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  readonly fullScatterIndices: Tensor<'i32' | 'i64'>;
  /** Filled by the expandedRows kernel; rows of real choices are overwritten. */
  readonly rowTable: Tensor<'i32'>;
  readonly rankTable: Tensor<'i32'>;
}

/** Returns the flat index of the first choice whose place is not in its expert's block, or -1. */
export function applyScatterIndices(
  { topkIdx, fullScatterIndices, rowTable, rankTable }: ScatterInput,
  plan: ExpertPlan,
): number {
  const experts = topkIdx.view();
  const places = fullScatterIndices.view();
  const ranks = rankTable.view();
  const rows = rowTable.view();
  for (let cell = 0; cell < ranks.length; cell++) {
    const rank = ranks[cell]!;
    if (rank < 0) continue;
    const expert = Number(experts[cell]);
    const row = Number(places[cell]) - plan.flattenedStart[rank]!;
    const start = plan.blockStart[expert]!;
    if (row < start || row >= start + plan.blockRows[expert]!) return cell;
    rows[cell] = row;
  }
  return -1;
}

/**
 * The same error on every rank, from the statuses they exchanged: 0 good, else 1 + the flat index of the bad choice.
 * `ranks`: world ranks of those that the statuses are of.
 */
export function throwIfOutOfBlock(statuses: readonly number[], ranks: readonly number[]): void {
  const index = statuses.findIndex((status) => status !== 0);
  if (index === -1) return;
  const rank = ranks[index];
  fail(
    `fullScatterIndices of rank ${rank} names a row outside its expert's block, first at flat index ${statuses[index]! - 1}`,
    { rank },
  );
}

/** The same error on every rank: 1 where a received row was never written, because two choices named another row. */
export function throwIfRepeated(statuses: readonly number[], ranks: readonly number[]): void {
  const index = statuses.findIndex((status) => status !== 0);
  if (index === -1) return;
  const rank = ranks[index];
  fail(
    `fullScatterIndices name a row of rank ${rank} twice, so that another one stayed empty; every row must be named once`,
    { rank },
  );
}

function fail(message: string, details: ErrorDetails): never {
  throw new WeftlineError('WL_INVALID_ARGUMENT', message, { details });
}
