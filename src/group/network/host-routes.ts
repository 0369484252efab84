// Routes across hosts among the ranks of a group: each host gets what is meant for it through one rank per source.

/** Ranks of every host, by host; hosts are numbered by their lowest rank, as in Topology. */
export type Hosts = readonly (readonly number[])[];

/** The way from this rank to another host. */
export interface HostWay {
  readonly host: number;
  /** The rank there that takes what this rank sends to the host. */
  readonly forwarder: number;
  /** Place of this rank among those that the forwarder serves. */
  readonly slot: number;
  /** Ranks of that host. */
  readonly ranks: readonly number[];
  /** The forwarder's place on its host is that of this rank on its own: so it is unless that host has fewer ranks. */
  readonly hasSamePlace: boolean;
}

/** A rank of another host whose forwarder on this host this rank is. */
export interface ServedSource {
  readonly rank: number;
  readonly host: number;
  /** Place of this host among the ways of that rank. */
  readonly way: number;
  /** The source's place on its host is that of this rank. */
  readonly hasSamePlace: boolean;
}

export interface HostRoutes {
  readonly hosts: Hosts;
  /** This rank's. */
  readonly host: number;
  /** Ways to every other host: first the one behind this host, so that not all hosts send to the same one at first. */
  readonly ways: readonly HostWay[];
  /** Sources by slot, in ascending order of ranks. */
  readonly served: readonly ServedSource[];
  /**
   * All ranks that this one has a link to, in the order of `ways`, then those served besides: a transport serves links in the
   * order in which they were made, and so each rank begins with another host.
   */
  readonly peers: readonly number[];
  /** Ranks of this host to which this rank passes on what it takes from others. */
  readonly here: readonly number[];
  /** For each rank of another host: who takes here what it sends, and its slot there. */
  readonly takers: ReadonlyMap<number, Taker>;
}

interface Taker {
  readonly forwarder: number;
  readonly slot: number;
}

/** Pure. `rank` and the ranks of `hosts` are of the group. */
export function hostRoutes(hosts: Hosts, rank: number): HostRoutes {
  const host = hosts.findIndex((ranks) => ranks.includes(rank));
  const index = hosts[host]!.indexOf(rank);
  const ways = waysOf(hosts, host).map((other): HostWay => {
    const ranks = hosts[other]!;
    const at = index % ranks.length;
    const slot = servedBy(hosts, other, at).findIndex((source) => source.rank === rank);
    return { host: other, forwarder: ranks[at]!, slot, ranks, hasSamePlace: at === index };
  });
  const served = servedBy(hosts, host, index);
  const peers = [...new Set([...ways.map(({ forwarder }) => forwarder), ...served.map((source) => source.rank)])];
  const here = hosts[host]!;
  const takers = new Map(
    here
      .flatMap((forwarder, at) =>
        servedBy(hosts, host, at).map((source, slot): [number, Taker] => [source.rank, { forwarder, slot }]),
      )
      .toSorted(([a], [b]) => a - b),
  );
  return { hosts, host, ways, served, peers, here, takers };
}

/**
 * Pure. The routes of ranks that may be lost at any time: each sends to every rank of another host by itself, so none depends on a
 * third one. To a rank all others elsewhere then look as if each were alone on its host, and a row crosses once for each of them.
 */
export function directRoutes(hosts: Hosts, rank: number): HostRoutes {
  const seen = seenFrom(hosts, rank);
  const host = seen.findIndex((ranks) => ranks.includes(rank));
  const ways = directPeers(hosts, rank).map((forwarder): HostWay => ({
    host: seen.findIndex((ranks) => ranks.includes(forwarder)),
    forwarder,
    slot: ranksElsewhere(hosts, forwarder).indexOf(rank),
    ranks: [forwarder],
    hasSamePlace: true,
  }));
  const served = ranksElsewhere(hosts, rank).map((source) => ({
    rank: source,
    host: seen.findIndex((ranks) => ranks.includes(source)),
    way: directPeers(hosts, source).indexOf(rank),
    hasSamePlace: true,
  }));
  const peers = ways.map(({ forwarder }) => forwarder);
  const takers = new Map(served.map((source, slot) => [source.rank, { forwarder: rank, slot }]));
  return { hosts: seen, host, ways, served, peers, here: [rank], takers };
}

/** Most sources that any rank serves. */
export function maxServed(hosts: Hosts): number {
  return Math.max(0, ...hosts.flatMap((ranks, host) => ranks.map((_, index) => servedBy(hosts, host, index).length)));
}

/** The same of directRoutes(), which is also how many ways there are. */
export function maxServedDirectly(hosts: Hosts): number {
  return hosts.flat().length - Math.min(...hosts.map(({ length }) => length));
}

/** This rank's host, and each other rank as a host of its own. */
function seenFrom(hosts: Hosts, rank: number): Hosts {
  const own = hosts.find((ranks) => ranks.includes(rank))!;
  return [own, ...ranksElsewhere(hosts, rank).map((other) => [other])].toSorted((a, b) => a[0]! - b[0]!);
}

function ranksElsewhere(hosts: Hosts, rank: number): number[] {
  return hosts.flatMap((ranks) => (ranks.includes(rank) ? [] : ranks)).toSorted((a, b) => a - b);
}

/** Other ranks in the order in which that rank sends to them. */
function directPeers(hosts: Hosts, rank: number): number[] {
  const seen = seenFrom(hosts, rank);
  const own = seen.findIndex((ranks) => ranks.includes(rank));
  return waysOf(seen, own).map((host) => seen[host]![0]!);
}

function servedBy(hosts: Hosts, host: number, index: number): ServedSource[] {
  const { length } = hosts[host]!;
  return hosts
    .flatMap((ranks, other) =>
      other === host
        ? []
        : ranks.flatMap((rank, at) =>
            at % length === index
              ? [{ rank, host: other, way: waysOf(hosts, other).indexOf(host), hasSamePlace: at === index }]
              : [],
          ),
    )
    .toSorted((a, b) => a.rank - b.rank);
}

/** The other hosts, beginning behind `host`. */
function waysOf(hosts: Hosts, host: number): number[] {
  return Array.from({ length: hosts.length - 1 }, (_, at) => (host + 1 + at) % hosts.length);
}
