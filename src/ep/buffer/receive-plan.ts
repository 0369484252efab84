// From everyone's counts: where this rank's rows start at each destination, and how many it will receive.
import { alignUp } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ExchangeResult } from '../../collective/exchange.ts';

export interface ReceivePlan {
  /** firstRow[d]: the row at rank d where this rank's tokens begin. */
  readonly firstRow: Int32Array;
  readonly numRecvTokens: number;
  /** Choices of each local expert by all ranks, rounded up to the alignment. */
  readonly numRecvTokensPerExpert: readonly number[];
  /** [s * n + d]: rows that ranks 0..s together send to rank d. */
  readonly rankPrefixMatrix: Int32Array;
}

export interface ReceivePlanOptions {
  readonly rank: number;
  /** World ranks, for errors. */
  readonly ranks: readonly number[];
  readonly experts: number;
  readonly expertAlignment: number;
}

/** Pure. Every rank fails with the same WL_CAPACITY if one would get more rows than its own bound. */
export function planReceive(exchange: ExchangeResult, options: ReceivePlanOptions): ReceivePlan {
  const { rank, experts, expertAlignment } = options;
  const n = exchange.numTokens.length;
  const rankPrefixMatrix = new Int32Array(n * n);
  for (let d = 0; d < n; d++) {
    let sum = 0;
    for (let s = 0; s < n; s++) {
      sum += exchange.perRank[s * n + d]!;
      rankPrefixMatrix[s * n + d] = sum;
    }
    checkBound(options.ranks[d]!, sum, exchange.rowBound[d]!);
  }
  const firstRow = new Int32Array(n);
  if (rank > 0) firstRow.set(rankPrefixMatrix.subarray((rank - 1) * n, rank * n));
  const perLocalExpert = Array.from({ length: experts / n }, (_, local) => {
    const expert = (rank * experts) / n + local;
    let count = 0;
    for (let s = 0; s < n; s++) count += exchange.perExpert[s * experts + expert]!;
    return alignUp(count, expertAlignment);
  });
  return {
    firstRow,
    numRecvTokens: rankPrefixMatrix[(n - 1) * n + rank]!,
    numRecvTokensPerExpert: perLocalExpert,
    rankPrefixMatrix,
  };
}

function checkBound(rank: number, rows: number, bound: number): void {
  if (bound !== 0 && rows > bound) throw capacityError(rank, { rows, bound });
}

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
