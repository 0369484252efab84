// Which rows travel where for one routing: the plan of the copy ceiling, and the rows that bandwidths count.

/** One copy per (token, destination rank), token-major: `tokens[i]` goes to row `rows[i]` of rank `destinations[i]`. */
export interface TrafficCopyPlan {
  readonly tokens: Int32Array;
  readonly destinations: Int32Array;
  readonly rows: Int32Array;
}

/** [tokens, ranks]: 1 where a token has at least one expert at that rank. Expert ids of -1 count nowhere. */
export function tokensInRanks(topkIdx: Int32Array, topk: number, expertsPerRank: number, ranks: number): Uint8Array {
  const result = new Uint8Array((topkIdx.length / topk) * ranks);
  for (const [index, expert] of topkIdx.entries()) {
    if (expert >= 0) result[Math.floor(index / topk) * ranks + Math.floor(expert / expertsPerRank)] = 1;
  }
  return result;
}

/** Tokens that one rank sends to each rank. */
export function countTokens(inRanks: Uint8Array, ranks: number): number[] {
  const counts = Array.from({ length: ranks }, () => 0);
  for (const [index, flag] of inRanks.entries()) counts[index % ranks] = (counts[index % ranks] as number) + flag;
  return counts;
}

/** Where dispatch puts each row: ordered by source rank, then token. `counts[source][destination]` of all ranks. */
export function planCopies(inRanks: Uint8Array, counts: readonly (readonly number[])[], rank: number): TrafficCopyPlan {
  const ranks = counts.length;
  const next = Array.from({ length: ranks }, (_, destination) =>
    counts.slice(0, rank).reduce((sum, row) => sum + (row[destination] as number), 0),
  );
  const copies = (counts[rank] as readonly number[]).reduce((sum, count) => sum + count, 0);
  const plan = { tokens: new Int32Array(copies), destinations: new Int32Array(copies), rows: new Int32Array(copies) };
  let at = 0;
  for (const [index, flag] of inRanks.entries()) {
    if (flag === 0) continue;
    const destination = index % ranks;
    plan.tokens[at] = Math.floor(index / ranks);
    plan.destinations[at] = destination;
    plan.rows[at] = next[destination] as number;
    next[destination] = (next[destination] as number) + 1;
    at += 1;
  }
  return plan;
}

/** Rows of all ranks together. */
export interface RowCounts {
  /** Every received row, a rank's own included: what the field calls bandwidth. */
  readonly logical: number;
  /** Rows that came from another rank. */
  readonly wire: number;
}

export function countRows(counts: readonly (readonly number[])[]): RowCounts {
  let logical = 0;
  let own = 0;
  for (const [source, row] of counts.entries()) {
    for (const count of row) logical += count;
    own += row[source] as number;
  }
  return { logical, wire: logical - own };
}

/** (token, expert) pairs that each rank receives from this one: the rows of a layout with one row per local expert. */
export function countPairs(topkIdx: Int32Array, expertsPerRank: number, ranks: number): number[] {
  const counts = Array.from({ length: ranks }, () => 0);
  for (const expert of topkIdx) {
    if (expert < 0) continue;
    const rank = Math.floor(expert / expertsPerRank);
    counts[rank] = (counts[rank] as number) + 1;
  }
  return counts;
}
