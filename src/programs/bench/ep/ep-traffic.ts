// Which rows travel where for one routing: the plan of the copy ceiling, and the rows that bandwidths count, within hosts and between.
import type { Hosts } from '../../../group/network/host-routes.ts';
import type { BenchGroup } from '../harness.ts';
import type { EpWorkload } from './ep-workload.ts';

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
  for (const [index, flag] of inRanks.entries()) counts[index % ranks]! += flag;
  return counts;
}

/** Where dispatch puts each row: ordered by source rank, then token. `counts[source][destination]` of all ranks. */
export function planCopies(inRanks: Uint8Array, counts: readonly (readonly number[])[], rank: number): TrafficCopyPlan {
  const ranks = counts.length;
  const next = Array.from({ length: ranks }, (_, destination) =>
    counts.slice(0, rank).reduce((sum, row) => sum + row[destination]!, 0),
  );
  const copies = counts[rank]!.reduce((sum, count) => sum + count, 0);
  const plan = { tokens: new Int32Array(copies), destinations: new Int32Array(copies), rows: new Int32Array(copies) };
  let at = 0;
  for (const [index, flag] of inRanks.entries()) {
    if (flag === 0) continue;
    const destination = index % ranks;
    plan.tokens[at] = Math.floor(index / ranks);
    plan.destinations[at] = destination;
    plan.rows[at] = next[destination]!;
    next[destination]! += 1;
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
    own += row[source]!;
  }
  return { logical, wire: logical - own };
}

/** (token, expert) pairs that each rank receives from this one: the rows of a layout with one row per local expert. */
export function countPairs(topkIdx: Int32Array, expertsPerRank: number, ranks: number): number[] {
  const counts = Array.from({ length: ranks }, () => 0);
  for (const expert of topkIdx) {
    if (expert < 0) continue;
    const rank = Math.floor(expert / expertsPerRank);
    counts[rank]! += 1;
  }
  return counts;
}

/** Collective. [tokens, ranks] of this rank's routing, and how many tokens each rank sends to each: [source][destination]. */
export async function shareTokens(
  group: BenchGroup,
  topkIdx: Int32Array,
  { topk, experts }: EpWorkload,
): Promise<{ readonly inRanks: Uint8Array; readonly counts: readonly (readonly number[])[] }> {
  const inRanks = tokensInRanks(topkIdx, topk, experts / group.size, group.size);
  return { inRanks, counts: await group.allGather('bench-counts', countTokens(inRanks, group.size)) };
}

/** Of all ranks together, in one call. */
export interface HostRows {
  /** One per token and other host that has an expert of it: nothing less brings every token to every host. */
  readonly network: number;
  /** To ranks of the token's own host, its own rank included. */
  readonly ownHost: number;
  /** Places of tokens of other hosts behind the first one of each: the row is copied there from another place of the host. */
  readonly forwarded: number;
}

/** [host]: tokens of one rank that go there. `inRanks` u8 [tokens, ranks] as tokensInRanks() makes it. */
export function countTokensOfHosts(inRanks: Uint8Array, hosts: Hosts): number[] {
  const ranks = hosts.reduce((sum, of) => sum + of.length, 0);
  const counts = hosts.map(() => 0);
  for (let first = 0; first < inRanks.length; first += ranks) {
    for (const [host, of] of hosts.entries()) {
      if (of.some((rank) => inRanks[first + rank] === 1)) counts[host]! += 1;
    }
  }
  return counts;
}

/**
 * Pure.
 * @param hosts Ranks of each host.
 * @param rows [source][rank]: rows that each rank sends to each other.
 * @param tokens [source][host]: tokens that each rank sends to each host.
 */
export function countHostRows(
  hosts: Hosts,
  rows: readonly (readonly number[])[],
  tokens: readonly (readonly number[])[],
): HostRows {
  const total = { network: 0, ownHost: 0, forwarded: 0 };
  for (const [source, bySource] of rows.entries()) {
    for (const [host, of] of hosts.entries()) {
      const there = of.reduce((sum, rank) => sum + bySource[rank]!, 0);
      if (of.includes(source)) {
        total.ownHost += there;
        continue;
      }
      const crossing = tokens[source]![host]!;
      total.network += crossing;
      total.forwarded += there - crossing;
    }
  }
  return total;
}
