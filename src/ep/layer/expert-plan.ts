// From everyone's counts: where the rows of each (expert, source rank) stand in the outputs, grouped by expert.
import type { WeftlineError } from '../../core/errors.ts';
import type { ExchangeResult } from '../../group/exchange.ts';
import { capacityError } from '../buffer/receive-plan.ts';

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
