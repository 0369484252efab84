// Finds out from everyone's counts where this rank's rows start at each destination, and how many it will receive.
import { alignUp } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CountExchange } from '../../group/exchange.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { EpTables } from './cpu/buffer-rows.ts';

export interface ReceivePlan {
  readonly numRecvTokens: number;
  /** Choices of each local expert by all ranks, rounded up to the alignment. */
  readonly numRecvTokensPerExpert: readonly number[];
  /** [s * n + d]: rows that ranks 0..s together send to rank d. */
  readonly rankPrefixMatrix: Int32Array;
}

interface ReceivePlanOptions {
  readonly exchange: CountExchange;
  readonly tables: EpTables;
  readonly rank: number;
  /** World ranks, for errors. */
  readonly ranks: readonly number[];
  readonly expertAlignment: number;
}

/**
 * Behind the barrier of the exchange. Leaves in `tables.nextRow` the row at each rank where this rank's tokens begin. Every
 * rank fails with the same WL_CONFIG_MISMATCH if they disagree, WL_CAPACITY if one would get more rows than its own bound.
 */
export function planReceive(device: CpuDevice, options: ReceivePlanOptions): ReceivePlan {
  const { exchange, tables, rank, ranks, expertAlignment } = options;
  const { records, rankPrefix, perLocalExpert, nextRow, shape } = tables;
  const n = ranks.length;
  const exceeded = device.kernels.planReceive(
    records.address + exchange.parity * n * 4,
    n,
    shape.experts,
    rank,
    rankPrefix.address,
    nextRow.address,
    perLocalExpert.address,
  );
  // A copy that is not shared.
  const rankPrefixMatrix = rankPrefix.view().slice();
  if (exceeded !== GOOD) {
    exchange.requireAgreement();
    const rows = rankPrefixMatrix[(n - 1) * n + exceeded]!;
    throw capacityError(ranks[exceeded]!, { rows, bound: exchange.rowBoundOf(exceeded) });
  }
  return {
    numRecvTokens: rankPrefixMatrix[(n - 1) * n + rank]!,
    numRecvTokensPerExpert: alignedCounts(perLocalExpert.view(), expertAlignment),
    rankPrefixMatrix,
  };
}

/** Hot path. */
function alignedCounts(counts: Int32Array, alignment: number): readonly number[] {
  const aligned: number[] = [];
  for (let expert = 0; expert < counts.length; expert++) aligned.push(alignUp(counts[expert]!, alignment));
  return aligned;
}

/** What the kernel returns if all is well. */
const GOOD = -1;

/** `least`: what a bound that always suffices is. */
export function capacityError(
  rank: number,
  { rows, bound }: { readonly rows: number; readonly bound: number },
  least = "the sum of all ranks' tokens",
): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `Rank ${rank} would receive ${rows} rows, more than its numWorstTokens ${bound}; pass at least ${least}`,
    { details: { rank, rows, numWorstTokens: bound } },
  );
}
