// How the ranks of a group on several hosts link to each other: each tells all what it has, then links to its peers.
import { MAX_NETWORK_CHANNELS } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import { engineCount } from '../../transport/host/rank-cores.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';

interface NetworkMeeting<Told> {
  /** The name of the exchange, see allGather(). */
  readonly name: string;
  /** What this rank has; JSON. */
  readonly tell: () => Promise<Told>;
  /** `told`: by rank. */
  readonly connect: (told: readonly Told[]) => Promise<void>;
}

/** Collective. Every rank fails with the error of the first rank where either step failed. */
export async function meetAcrossHosts<Told>(
  group: RankGroup,
  { name, tell, connect }: NetworkMeeting<Told>,
  wait: CallWait,
): Promise<void> {
  const { values, failure } = await shareOutcome(group, { name, facts: 0, work: tell }, wait);
  if (failure !== undefined) throw failure;
  const work = (): Promise<void> => connect(values as readonly Told[]);
  const links = await shareOutcome(group, { name: `${name}/links`, facts: 0, work }, wait);
  if (links.failure !== undefined) throw links.failure;
}

/** Links to these ranks of the group, all at once. An error of one link names its rank. */
export async function linkToPeers(
  { ranks }: RankGroup,
  peers: readonly number[],
  link: (peer: number) => Promise<void>,
): Promise<void> {
  const linkTo = (peer: number): Promise<void> =>
    link(peer).catch((cause: unknown) => {
      // The error knows the peer's agent alone.
      const { code, message, details } = asWeftlineError(cause);
      const text = `Rank ${ranks[peer]}, on another host, is out of reach: ${message}`;
      throw new WeftlineError(code, text, { details, rank: ranks[peer]!, cause });
    });
  await Promise.all(peers.map(linkTo));
}

/** Channels that a rank with these settings has to each peer; the ranks use as many as the one with the fewest. */
export function networkChannels(settings: Settings): number {
  return Math.min(MAX_NETWORK_CHANNELS, engineCount(settings));
}
