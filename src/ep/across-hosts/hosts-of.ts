// The hosts of a group, as counts and sizes see them.
import { invalidArgument } from '../../core/errors.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import type { RankGroup } from '../../world/rank-group.ts';

/** How many hosts an exchange of counts tells apart; 0 where all ranks are on one: nothing is counted per host then. */
export function countedHosts({ topology: { hosts } }: RankGroup): number {
  return hosts.length === 1 ? 0 : hosts.length;
}

/** Ranks of each host of a group. */
export function ranksOfHosts({ topology: { hosts } }: RankGroup): number[] {
  return hosts.map(({ length }) => length);
}

/**
 * Hosts with that many ranks each, numbered host by host: sizes depend on how many there are alone. Fails with
 * WL_INVALID_ARGUMENT if they are not `numRanks` together.
 */
export function numberHosts(counts: readonly number[], numRanks: number): Hosts {
  if (!Array.isArray(counts)) throw invalidArgument('ranksOfHosts', counts, 'a list of how many ranks each host has');
  const sum = counts.reduce((total: number, count: unknown) => total + (typeof count === 'number' ? count : NaN), 0);
  if (sum !== numRanks || !counts.every((count) => Number.isSafeInteger(count) && count >= 1)) {
    throw invalidArgument('ranksOfHosts', counts, `whole numbers of at least 1 whose sum is ${numRanks}`);
  }
  let next = 0;
  return counts.map((count) => Array.from({ length: count }, () => next++));
}
