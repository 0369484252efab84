// A two-level Clos network: hosts at leaf switches, each leaf connected to every spine switch.
import type { LinkOptions } from './link.ts';
import { ARRIVED, ecmpHash, type NetworkTopology } from './topology.ts';

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
