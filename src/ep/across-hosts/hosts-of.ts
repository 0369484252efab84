// How many hosts an exchange of counts tells apart.
import type { RankGroup } from '../../world/rank-group.ts';

/** 0 where all ranks are on one host: nothing is counted per host then. */
export function hostsOf({ topology: { hosts } }: RankGroup): number {
  return hosts.length === 1 ? 0 : hosts.length;
}
