// The network of the ranks of several hosts: each rank has network cards of its own.
import type { LinkOptions } from '../link.ts';
import { patternTopology, type TopologyName } from '../pattern-topology.ts';
import { ARRIVED, type NetworkTopology, routeOf } from '../topology.ts';

/** Where the cards of a host's ranks are ports of one network, all of them have to be simulated. */
export const epTopologyNames = ['star', 'rail-optimised', 'fat-tree', 'leaf-spine'] as const satisfies TopologyName[];
export type EpTopologyName = (typeof epTopologyNames)[number];

interface EpNetworkOptions {
  readonly name: EpTopologyName;
  readonly hosts: number;
  /** Of each host; those that are simulated. */
  readonly ranks: number;
  /** Network cards of a rank, which share its rate. */
  readonly rails: number;
  readonly paths: number;
  readonly seed: number;
  /** Of a rank. */
  readonly gigabitsPerSecond: number;
  readonly link: Partial<Omit<LinkOptions, 'gigabitsPerSecond'>>;
  /** A host whose links have this share of the others' rate. */
  readonly slowHost?: { readonly host: number; readonly linkFactor: number };
}

/**
 * Rank i of host h is number h * ranks + i.
 * - star: a switch for the first ranks of all hosts, one for the second ranks, and so on.
 * - rail-optimised: likewise, two levels of switches in place of each.
 * - fat-tree: likewise, three levels.
 * - leaf-spine: all cards of a host are ports of one leaf switch.
 */
export function epNetwork(options: EpNetworkOptions): NetworkTopology {
  const { name, hosts, ranks, slowHost } = options;
  const network =
    name === 'leaf-spine'
      ? patternTopology({ ...options, hosts: hosts * ranks })
      : networkPerRank(patternTopology(options), ranks);
  if (slowHost === undefined || slowHost.linkFactor === 1) return network;
  const slow = new Set<number>();
  for (let rank = 0; rank < ranks; rank += 1) {
    const { up, down } = rankLinks(network, slowHost.host * ranks + rank, ranks);
    for (const link of [...up, ...down]) slow.add(link);
  }
  const links = network.links.map((link, index) =>
    slow.has(index) ? { ...link, gigabitsPerSecond: link.gigabitsPerSecond * slowHost.linkFactor } : link,
  );
  return { ...network, links };
}

/** The links of a rank's cards: from it, and to it. `ranks`: of each host. */
export function rankLinks(
  network: NetworkTopology,
  rank: number,
  ranks: number,
): { readonly up: readonly number[]; readonly down: readonly number[] } {
  // Of the same place on another host: others may be on another network.
  const other = rank < ranks ? rank + ranks : rank - ranks;
  const rails = Array.from({ length: network.rails }, (_, rail) => rail);
  return {
    up: rails.map((rail) => network.firstLink(rank, other, rail)),
    down: rails.map((rail) => routeOf(network, other, rank, rail).at(-1)!),
  };
}

/** One copy of the network for each place of a rank on its host. */
function networkPerRank(network: NetworkTopology, ranks: number): NetworkTopology {
  if (ranks === 1) return network;
  const { hosts, links } = network;
  const size = links.length;
  const hostOf = (rank: number): number => Math.floor(rank / ranks);
  return {
    name: `${ranks} times ${network.name}`,
    hosts: hosts * ranks,
    rails: network.rails,
    links: Array.from({ length: ranks }, () => links).flat(),
    railOf: (link) => network.railOf(link % size),
    firstLink: (source, destination, path) =>
      (source % ranks) * size + network.firstLink(hostOf(source), hostOf(destination), path),
    nextLink: (at, source, destination, path) => {
      const link = at % size;
      const next = network.nextLink(link, hostOf(source), hostOf(destination), path);
      return next === ARRIVED ? ARRIVED : at - link + next;
    },
  };
}
