// Caller-given places: full scatter indices number the rows of all ranks' outputs as one; here they become local rows.
import { type ErrorDetails, WeftlineError } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { ExpertPlan } from './expert-plan.ts';

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
