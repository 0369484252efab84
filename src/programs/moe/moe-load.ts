// How the routing of all tokens loads experts and ranks.

/** What one rank knows of the routing: counts over its own tokens. */
interface RoutingCounts {
  readonly tokens: number;
  /** [E] choices of each expert. */
  readonly perExpert: readonly number[];
  /** [ranks] tokens that have at least one expert there. */
  readonly tokensTo: readonly number[];
}

interface RankLoad {
  readonly rank: number;
  /** Tokens that start here. */
  readonly tokens: number;
  /** Rows that dispatch brings here, and how many of them come from other ranks. */
  readonly received: number;
  readonly receivedFromOthers: number;
  /** Rows that the experts here compute: one per token and expert. */
  readonly expertRows: number;
}

export interface MoeLoad {
  /** [E] rows of each expert. */
  readonly experts: readonly number[];
  readonly ranks: readonly RankLoad[];
}

interface Spread {
  readonly mean: number;
  readonly least: { readonly index: number; readonly value: number };
  readonly most: { readonly index: number; readonly value: number };
}

/** Counts over expert ids [T, K], -1 for none. */
export function countRouting(
  topkIdx: BigInt64Array,
  shape: { readonly topk: number; readonly experts: number; readonly ranks: number },
): RoutingCounts {
  const { topk, experts, ranks } = shape;
  const perExpert = Array.from({ length: experts }, () => 0);
  const tokensTo = Array.from({ length: ranks }, () => 0);
  const tokens = topkIdx.length / topk;
  for (let token = 0; token < tokens; token++) {
    const destinations = new Set<number>();
    for (const id of topkIdx.subarray(token * topk, (token + 1) * topk)) {
      const expert = Number(id);
      if (expert < 0) continue;
      perExpert[expert] = perExpert[expert]! + 1;
      destinations.add(Math.floor((expert * ranks) / experts));
    }
    for (const rank of destinations) tokensTo[rank] = tokensTo[rank]! + 1;
  }
  return { tokens, perExpert, tokensTo };
}

/** The load of all from the counts of each rank. With 'expert' rows travel once per token and expert, else once per token and rank. */
export function gatherLoad(counts: readonly RoutingCounts[], rowsPer: 'rank' | 'expert'): MoeLoad {
  const ranks = counts.length;
  const experts = counts[0]?.perExpert.map((_, expert) => sum(counts.map((each) => each.perExpert[expert]!)));
  const perRank = (experts?.length ?? 0) / ranks;
  const loads = counts.map((own, rank) => {
    const local = (each: RoutingCounts): number => sum(each.perExpert.slice(rank * perRank, (rank + 1) * perRank));
    const sent = (each: RoutingCounts): number => (rowsPer === 'expert' ? local(each) : each.tokensTo[rank]!);
    const received = sum(counts.map(sent));
    return {
      rank,
      tokens: own.tokens,
      received,
      receivedFromOthers: received - sent(own),
      expertRows: sum(counts.map(local)),
    };
  });
  return { experts: experts ?? [], ranks: loads };
}

/** Mean, first smallest and first largest of some values. */
export function spread(values: readonly number[]): Spread {
  const at = (value: number): Spread['least'] => ({ index: values.indexOf(value), value });
  return { mean: sum(values) / values.length, least: at(Math.min(...values)), most: at(Math.max(...values)) };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
