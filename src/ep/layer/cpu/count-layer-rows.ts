// Which rows a dispatch and a combine of a layer move on CPU ranks, for metrics. Hot path: an addition per expert and rank.
import type { EpOp } from '../../../core/counts.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { RoutedTokens } from '../../across-hosts/routed-tokens.ts';
import { countSentRows, type SentRows, sentRows } from '../../buffer/count-rows.ts';
import type { LayoutTensors } from '../../buffer/dispatch-layout.ts';

/** Of one dispatch, within this rank's host. */
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

/** To another host goes one row per token. */
export function countLayerRows(op: EpOp, rows: SentRows, routed: RoutedTokens | undefined, rowBytes: number): void {
  let network = 0;
  if (routed !== undefined) for (const { count } of routed.sent) network += count;
  countSentRows(op, { ...rows, network }, rowBytes);
}
