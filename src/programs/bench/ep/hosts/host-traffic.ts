// Which rows cross the network and which move within hosts, for one routing of ranks on several hosts.
import type { Hosts } from '../../../../group/network/host-routes.ts';

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
