// The links between hosts, what can go wrong on them, and which of them a packet takes.
import { invalidArgument } from '../../core/errors.ts';

export interface LinkOptions {
  readonly gigabitsPerSecond: number;
  /** Propagation, in microseconds. */
  readonly delay: number;
  /** Bytes that may wait before the link; a packet that does not fit is dropped. */
  readonly queueBytes: number;
  /** A packet that finds more bytes waiting than this is marked (ECN). */
  readonly ecnBytes: number;
  /** Probability that a packet is lost. */
  readonly loss: number;
  /** Probability that a packet takes up to `jitter` microseconds longer, so that others overtake it. */
  readonly reorder: number;
  readonly jitter: number;
  /** Probability that a packet arrives twice. */
  readonly duplicate: number;
  /** Probability that a packet arrives with changed bytes. */
  readonly corrupt: number;
}

/** 100 Gbps, 1 µs, a megabyte of queue, and nothing goes wrong. */
export const defaultLink: LinkOptions = {
  gigabitsPerSecond: 100,
  delay: 1,
  queueBytes: 1_000_000,
  ecnBytes: Number.POSITIVE_INFINITY,
  loss: 0,
  reorder: 0,
  jitter: 0,
  duplicate: 0,
  corrupt: 0,
};

/** `nextLink` of the last link. */
export const ARRIVED = -1;

/** `railOf` a link that carries packets of several rails. */
export const SHARED = -1;

/** Links are numbered; a packet is routed by its source, its destination and its path (its UDP source port, so to say). */
export interface NetworkTopology {
  readonly name: string;
  readonly hosts: number;
  /** Network cards of a host, each with a link of its own to and from the network. */
  readonly rails: number;
  readonly links: readonly LinkOptions[];
  /** The rail whose packets alone a link carries, or SHARED. */
  railOf(link: number): number;
  firstLink(source: number, destination: number, path: number): number;
  /** The link after `link`, or ARRIVED. */
  nextLink(link: number, source: number, destination: number, path: number): number;
}

/** All links of a route, in order. */
export function routeOf(topology: NetworkTopology, source: number, destination: number, path: number): number[] {
  const links: number[] = [];
  let link = topology.firstLink(source, destination, path);
  while (link !== ARRIVED) {
    links.push(link);
    link = topology.nextLink(link, source, destination, path);
  }
  return links;
}

/** The links that a path uses and the next one does not. */
export function pathLinks(topology: NetworkTopology, path: number, paths: number): number[] {
  const links = new Set<number>();
  const shared = new Set<number>();
  for (let source = 0; source < topology.hosts; source += 1) {
    for (let destination = 0; destination < topology.hosts; destination += 1) {
      if (source === destination) continue;
      for (const link of routeOf(topology, source, destination, path)) links.add(link);
      for (const link of routeOf(topology, source, destination, (path + 1) % paths)) shared.add(link);
    }
  }
  return [...links].filter((link) => !shared.has(link));
}

/** What a switch does to choose among equal links: the same for all packets of a (source, destination, path). */
export function ecmpHash(source: number, destination: number, path: number, salt: number): number {
  let word = Math.imul(source, 0x9e37_79b1) ^ Math.imul(destination + 0x5bd1, 0x85eb_ca6b);
  word ^= Math.imul(path + 0x27d4, 0xc2b2_ae35) ^ Math.imul(salt + 0x1656, 0x27d4_eb2f);
  word = Math.imul(word ^ (word >>> 16), 0x21f0_aaad);
  word = Math.imul(word ^ (word >>> 15), 0x735a_2d97);
  return (word ^ (word >>> 15)) >>> 0;
}

// One switch to which every host is connected.

interface StarOptions {
  readonly hosts: number;
  readonly link: LinkOptions;
}

/** Links from hosts to the switch are numbered as the hosts; those to hosts follow. */
export function star({ hosts, link }: StarOptions): NetworkTopology {
  return {
    name: `star of ${hosts} hosts`,
    hosts,
    rails: 1,
    links: Array.from({ length: 2 * hosts }, () => link),
    railOf: () => 0,
    firstLink: (source) => source,
    nextLink: (at, _source, destination) => (at < hosts ? hosts + destination : ARRIVED),
  };
}

// A two-level Clos network: hosts at leaf switches, each leaf connected to every spine switch.

interface LeafSpineOptions {
  readonly leaves: number;
  readonly hostsPerLeaf: number;
  readonly spines: number;
  /** Between host and leaf. */
  readonly link: LinkOptions;
  /** Between leaf and spine. */
  readonly fabric: LinkOptions;
  /** How a leaf chooses the spine: by a hash with this salt, or path p takes spine p (disjoint paths). */
  readonly ecmp: number | 'path';
}

/** Numbers of links: hosts up, hosts down, leaf to spine (leaf-major), spine to leaf (leaf-major). */
export function leafSpine({ leaves, hostsPerLeaf, spines, link, fabric, ecmp }: LeafSpineOptions): NetworkTopology {
  const hosts = leaves * hostsPerLeaf;
  const leafUps = 2 * hosts;
  const leafDowns = leafUps + leaves * spines;
  const leafOf = (host: number): number => Math.floor(host / hostsPerLeaf);
  const choose = (source: number, destination: number, path: number): number =>
    (ecmp === 'path' ? path : ecmpHash(source, destination, path, ecmp)) % spines;
  return {
    name: `${leaves} leaves of ${hostsPerLeaf} ports, ${spines} spines`,
    hosts,
    rails: 1,
    railOf: () => 0,
    links: Array.from({ length: leafDowns + leaves * spines }, (_, index) => (index < leafUps ? link : fabric)),
    firstLink: (source) => source,
    nextLink: (at, source, destination, path) => {
      if (at >= leafDowns) return hosts + destination;
      if (at >= leafUps) return leafDowns + leafOf(destination) * spines + ((at - leafUps) % spines);
      if (at >= hosts) return ARRIVED;
      const leaf = leafOf(source);
      if (leaf === leafOf(destination)) return hosts + destination;
      return leafUps + leaf * spines + choose(source, destination, path);
    },
  };
}

// The three-level fat tree of k-port switches (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008): k³/4 hosts, (k/2)² shortest paths between pods.

interface FatTreeOptions {
  /** Ports of a switch; even. */
  readonly ports: number;
  readonly link: LinkOptions;
  readonly fabric: LinkOptions;
  /** Salt of the hash by which switches choose among their ports up. */
  readonly ecmp: number;
}

/** Six groups of as many links as there are hosts: host to edge, edge to host, edge to aggregation and back, aggregation to core and back. */
export function fatTree({ ports, link, fabric, ecmp }: FatTreeOptions): NetworkTopology {
  const half = ports / 2;
  const hosts = ports * half * half;
  const pod = half * half;
  const [down, edgeUp, edgeDown, coreUp, coreDown] = [hosts, 2 * hosts, 3 * hosts, 4 * hosts, 5 * hosts];
  const edgeOf = (host: number): number => Math.floor(host / half);
  const podOf = (host: number): number => Math.floor(host / pod);
  return {
    name: `fat tree of ${ports}-port switches, ${hosts} hosts`,
    hosts,
    rails: 1,
    railOf: () => 0,
    links: Array.from({ length: 6 * hosts }, (_, index) => (index < edgeUp ? link : fabric)),
    firstLink: (source) => source,
    nextLink: (at, source, destination, path) => {
      // Within a group, link (edge switch e, port i) is e * half + i, and (pod p, aggregation a, port i) is p * pod + a * half + i.
      if (at < down) {
        if (edgeOf(source) === edgeOf(destination)) return down + destination;
        const aggregation = ecmpHash(source, destination, path, ecmp) % half;
        return edgeUp + edgeOf(source) * half + aggregation;
      }
      if (at < edgeUp) return ARRIVED;
      if (at < edgeDown) {
        const aggregation = (at - edgeUp) % half;
        if (podOf(source) === podOf(destination)) return edgeDown + edgeOf(destination) * half + aggregation;
        const port = ecmpHash(source, destination, path, ecmp + 1) % half;
        return coreUp + podOf(source) * pod + aggregation * half + port;
      }
      if (at < coreUp) return down + destination;
      if (at < coreDown) return coreDown + podOf(destination) * pod + ((at - coreUp) % pod);
      return edgeDown + edgeOf(destination) * half + Math.floor(((at - coreDown) % pod) / half);
    },
  };
}

// Hosts with several network cards (rails): path p leaves by rail p modulo their number, and arrives by the same rail.

/** Each rail has a network of its own, such as a leaf switch per rail and group of hosts: a rail-optimised network. */
export function separateRails(network: NetworkTopology, rails: number): NetworkTopology {
  if (rails === 1) return network;
  const { hosts, links } = network;
  const size = links.length;
  return {
    name: `${network.name}, ${rails} separate rails`,
    hosts,
    rails,
    links: Array.from({ length: rails }, () => links).flat(),
    railOf: (link) => Math.floor(link / size),
    firstLink: (source, destination, path) => {
      const inner = Math.floor(path / rails);
      return (path % rails) * size + network.firstLink(source, destination, inner);
    },
    nextLink: (at, source, destination, path) => {
      const link = at % size;
      const next = network.nextLink(link, source, destination, Math.floor(path / rails));
      return next === ARRIVED ? ARRIVED : at - link + next;
    },
  };
}

/** All rails of a host are ports of one network, neighbours on it: host h has ports h * rails to h * rails + rails - 1. */
export function sharedRails(network: NetworkTopology, rails: number): NetworkTopology {
  if (rails === 1) return network;
  const hosts = network.hosts / rails;
  const topology: NetworkTopology = {
    name: `${hosts} hosts of ${rails} rails on ${network.name}`,
    hosts,
    rails,
    links: network.links,
    railOf: (link) => railsOfLinks[link]!,
    firstLink: (source, destination, path) => {
      const rail = path % rails;
      return network.firstLink(source * rails + rail, destination * rails + rail, path);
    },
    nextLink: (at, source, destination, path) => {
      const rail = path % rails;
      return network.nextLink(at, source * rails + rail, destination * rails + rail, path);
    },
  };
  const railsOfLinks = new Int8Array(network.links.length).fill(SHARED);
  for (let host = 0; host < hosts; host += 1) {
    for (let rail = 0; rail < rails; rail += 1) {
      for (const link of hostLinks(topology, host, rail)) railsOfLinks[link] = rail;
    }
  }
  return topology;
}

/** The links of one rail of a host: from it, and to it. */
export function hostLinks(topology: NetworkTopology, host: number, rail: number): readonly [number, number] {
  const other = host === 0 ? 1 : 0;
  return [topology.firstLink(host, other, rail), routeOf(topology, other, host, rail).at(-1)!];
}

/** All links that belong to one rail alone. */
export function railLinks(topology: NetworkTopology, rail: number): readonly number[] {
  return topology.links.map((_, link) => link).filter((link) => topology.railOf(link) === rail);
}

/** The network with other properties of the links of one rail. */
export function changeRail(topology: NetworkTopology, rail: number, change: Partial<LinkOptions>): NetworkTopology {
  const links = topology.links.map((link, index) => (topology.railOf(index) === rail ? { ...link, ...change } : link));
  return { ...topology, links };
}

// The network that a traffic pattern runs on, from a few numbers.

export const topologyNames = ['pair', 'star', 'leaf-spine', 'rail-optimised', 'fat-tree'] as const;

export type TopologyName = (typeof topologyNames)[number];

interface PatternTopologyOptions {
  readonly name: TopologyName;
  readonly hosts: number;
  readonly paths: number;
  /** Network cards of a host, which share its rate. */
  readonly rails: number;
  readonly seed: number;
  /** The rate of a host, all its links together. */
  readonly gigabitsPerSecond: number;
  /** Properties of each link but those that `fault` changes. */
  readonly link: Partial<Omit<LinkOptions, 'gigabitsPerSecond'>>;
}

/**
 * Each link has the rate of a rail.
 * - pair: two hosts; behind their links, a link per path.
 * - star: one switch per rail.
 * - leaf-spine: two levels without oversubscription, about as many hosts at a leaf as there are leaves; all rails of a
 *   host are at the same leaf.
 * - rail-optimised: the same network once per rail, so that rails share no switch.
 * - fat-tree: three levels of k-port switches for k³/4 hosts, once per rail.
 */
export function patternTopology(options: PatternTopologyOptions): NetworkTopology {
  const { name, hosts, paths, rails, seed } = options;
  const link: LinkOptions = {
    ...defaultLink,
    ...options.link,
    gigabitsPerSecond: options.gigabitsPerSecond / rails,
  };
  const leaves = hosts / largestDivisor(hosts);
  const hostsPerLeaf = hosts / leaves;
  switch (name) {
    case 'pair': {
      if (hosts !== 2) throw invalidArgument('hosts of the topology pair', hosts, '2');
      const spines = Math.ceil(paths / rails);
      return separateRails(leafSpine({ leaves: 2, hostsPerLeaf: 1, spines, link, fabric: link, ecmp: 'path' }), rails);
    }
    case 'star':
      return separateRails(star({ hosts, link }), rails);
    case 'leaf-spine': {
      const ports = hostsPerLeaf * rails;
      const network = { leaves, hostsPerLeaf: ports, spines: ports, link, fabric: link, ecmp: seed };
      return sharedRails(leafSpine(network), rails);
    }
    case 'rail-optimised': {
      const network = { leaves, hostsPerLeaf, spines: hostsPerLeaf, link, fabric: link, ecmp: seed };
      return separateRails(leafSpine(network), rails);
    }
    case 'fat-tree':
    default: {
      const ports = Math.round(Math.cbrt(4 * hosts));
      if (ports % 2 !== 0 || ports ** 3 !== 4 * hosts) {
        throw invalidArgument(
          'hosts of a fat tree',
          hosts,
          'k³/4 for an even k: 2, 16, 54, 128, 250, 432, 686 or 1024',
        );
      }
      return separateRails(fatTree({ ports, link, fabric: link, ecmp: seed }), rails);
    }
  }
}

/** The largest divisor that is at most the square root. */
function largestDivisor(count: number): number {
  let divisor = Math.floor(Math.sqrt(count));
  while (count % divisor !== 0) divisor -= 1;
  return divisor;
}
