// Hosts with several network cards (rails): path p leaves by rail p modulo their number, and arrives by the same rail.
import type { LinkOptions } from './link.ts';
import { ARRIVED, type NetworkTopology, routeOf, SHARED } from './topology.ts';

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
