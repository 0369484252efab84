// How the ranks of a group on several hosts link to each other: each tells all what it has, then links to its peers.
import { MAX_NETWORK_CHANNELS } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import { engineCount } from '../../transport/host/rank-cores.ts';
import { shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';

interface Meeting<Told> {
  /** The name of the exchange, see allGather(). */
  readonly name: string;
  /** What this rank has; JSON. */
  readonly tell: () => Promise<Told>;
}

interface GroupMeeting<Told> extends Meeting<Told> {
  /** `told`: by rank. */
  readonly connect: (told: readonly Told[]) => Promise<void>;
}

/** Collective. Every rank fails with the error of the first rank where either step failed. */
export async function meetAcrossHosts<Told>(
  group: RankGroup,
  { name, tell, connect }: GroupMeeting<Told>,
  wait: CallWait,
): Promise<void> {
  const { values, failure } = await shareOutcome(group, { name, facts: 0, work: tell }, wait);
  if (failure !== undefined) throw failure;
  const work = (): Promise<void> => connect(values as readonly Told[]);
  const links = await shareOutcome(group, { name: `${name}/links`, facts: 0, work }, wait);
  if (links.failure !== undefined) throw links.failure;
}

interface PeerMeeting<Told> extends Meeting<Told> {
  /** The ranks of the group to link to, all at once. */
  readonly peers: readonly number[];
  readonly connect: (peer: number, told: Told, channels: number) => Promise<void>;
}

/**
 * The same with links to some of the ranks. Returns how many channels there are to each peer: as many as the rank with the
 * fewest engines has, the same on all ranks. An error of one link names its rank.
 */
export async function meetPeers<Told extends object>(
  group: RankGroup,
  { name, tell, peers, connect }: PeerMeeting<Told>,
  wait: CallWait,
): Promise<number> {
  const own = networkChannels(group.settings);
  let channels = own;
  await meetAcrossHosts(
    group,
    {
      name,
      tell: async () => ({ facts: await tell(), channels: own }),
      connect: async (told) => {
        channels = Math.min(...told.map((one) => one.channels));
        await Promise.all(
          peers.map((peer) =>
            connect(peer, told[peer]!.facts, channels).catch((error: unknown) => {
              // The error knows the peer's agent alone.
              throw outOfReach(group.ranks[peer]!, asWeftlineError(error));
            }),
          ),
        );
      },
    },
    wait,
  );
  return channels;
}

/** The error of a link, with the peer's rank in the world. */
export function outOfReach(rank: number, cause: WeftlineError): WeftlineError {
  const text = `Rank ${rank}, on another host, is out of reach: ${cause.message}`;
  return new WeftlineError(cause.code, text, { details: { ...cause.details, peer: rank }, rank, cause });
}

/** Channels that a rank with these settings can have to each peer. */
function networkChannels(settings: Settings): number {
  return Math.min(MAX_NETWORK_CHANNELS, engineCount(settings));
}
