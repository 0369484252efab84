// Which links there are between hosts, and which of them a packet takes.
import type { LinkOptions } from './link.ts';

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
