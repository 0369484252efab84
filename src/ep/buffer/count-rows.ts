// What a dispatch or a combine of EpBuffer moved, for metrics. Hot path: a few additions per rank.
import { countRowBytes, countTokens, type EpOp, noteImbalance } from '../../core/counts.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { DispatchHandle } from './dispatch-handle.ts';

/** Returns the bytes of the rows that leave this rank, or come back to it. */
export function countRows(op: EpOp, { group, handle, rowBytes }: CountedRows): number {
  countTokens(op, 'buffer', handle.numTokens);
  const { rankPrefixMatrix: sums, routed } = handle;
  // After a dispatch on a GPU for which the host did not wait.
  if (sums === undefined) return handle.numTokens * rowBytes;
  const { rank, size, topology } = group;
  const host = topology.hostOf(rank);
  let [own, near, far] = [0, 0, 0];
  for (let to = 0; to < size; to++) {
    const rows = sums[rank * size + to]! - (rank === 0 ? 0 : sums[(rank - 1) * size + to]!);
    if (to === rank) own += rows;
    else if (topology.hostOf(to) === host) near += rows;
  }
  if (routed !== undefined) for (const { count } of routed.sent) far += count;
  countRowBytes(op, 'self', own * rowBytes);
  countRowBytes(op, 'host', near * rowBytes);
  countRowBytes(op, 'network', far * rowBytes);
  if (op === 'dispatch') noteImbalance('buffer', sums, size, (size - 1) * size);
  return (own + near + far) * rowBytes;
}

interface CountedRows {
  readonly group: RankGroup;
  readonly handle: DispatchHandle;
  readonly rowBytes: number;
}
