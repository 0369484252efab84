// Counts, for metrics, the rows that a dispatch or a combine of this rank moves over each link. Hot path: a few additions per rank.
import { countRowBytes, countTokens, type EpOp, noteImbalance } from '../../core/counts.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { RoutedTokens } from '../across-hosts/routed-tokens.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import type { LayoutTensors } from './dispatch-layout.ts';

/** Rows that one rank sends, by where they go. */
interface SentRows {
  readonly own: number;
  readonly host: number;
  readonly network: number;
}

/** `rowsTo`: rows for each rank of the group, of which those to ranks of this host count; `network`: those to other hosts. */
function sentRows({ rank, size, topology }: RankGroup, rowsTo: (rank: number) => number, network: number): SentRows {
  const own = topology.hostOf(rank);
  let host = 0;
  for (let to = 0; to < size; to++) if (to !== rank && topology.hostOf(to) === own) host += rowsTo(to);
  return { own: rowsTo(rank), host, network };
}

/** Returns their bytes. */
function countSentRows(op: EpOp, { own, host, network }: SentRows, rowBytes: number): number {
  countRowBytes(op, 'self', own * rowBytes);
  countRowBytes(op, 'host', host * rowBytes);
  countRowBytes(op, 'network', network * rowBytes);
  return (own + host + network) * rowBytes;
}

/** Counts those of an EpBuffer. Returns the bytes of the rows that leave this rank, or come back to it. */
export function countRows(op: EpOp, { group, handle, rowBytes }: CountedRows): number {
  countTokens(op, 'buffer', handle.numTokens);
  const { rankPrefixMatrix: sums, routed } = handle;
  // There are no sums after a dispatch on a GPU for which the host did not wait.
  if (sums === undefined) return handle.numTokens * rowBytes;
  const { rank, size } = group;
  const before = (to: number): number => (rank === 0 ? 0 : sums[(rank - 1) * size + to]!);
  let network = handle.networkRows ?? 0;
  if (routed !== undefined) for (const { count } of routed.sent) network += count;
  const rows = sentRows(group, (to) => sums[rank * size + to]! - before(to), network);
  if (op === 'dispatch') noteImbalance('buffer', sums, size, (size - 1) * size);
  return countSentRows(op, rows, rowBytes);
}

interface CountedRows {
  readonly group: RankGroup;
  readonly handle: DispatchHandle;
  readonly rowBytes: number;
}

// Counts, for metrics, the rows that a dispatch and a combine of a layer move on CPU ranks. Hot path: an addition per expert and rank.

/** Rows of one dispatch that stay within this rank's host. */
export interface LayerRows {
  /** A row for each rank that holds a token. */
  readonly byRank: SentRows;
  /** A row for each expert of a token. */
  readonly byExpert: SentRows;
}

export function layerRows(group: RankGroup, { numTokensPerRank, numTokensPerExpert }: LayoutTensors): LayerRows {
  const [ranks, experts] = [numTokensPerRank.view(), numTokensPerExpert.view()];
  const perRank = experts.length / group.size;
  const ofExperts = (rank: number): number => {
    let rows = 0;
    for (let expert = rank * perRank; expert < (rank + 1) * perRank; expert++) rows += experts[expert]!;
    return rows;
  };
  return { byRank: sentRows(group, (rank) => ranks[rank]!, 0), byExpert: sentRows(group, ofExperts, 0) };
}

/** Only one row of a token goes to another host. */
export function countLayerRows(op: EpOp, rows: SentRows, routed: RoutedTokens | undefined, rowBytes: number): void {
  let network = 0;
  if (routed !== undefined) for (const { count } of routed.sent) network += count;
  countSentRows(op, { ...rows, network }, rowBytes);
}
