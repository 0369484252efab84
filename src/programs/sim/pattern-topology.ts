// Which network a traffic pattern runs on, from a few numbers.
import { invalidArgument } from '../../core/errors.ts';
import { fatTree } from './fat-tree.ts';
import { leafSpine } from './leaf-spine.ts';
import { defaultLink, type LinkOptions } from './link.ts';
import { separateRails, sharedRails } from './rails.ts';
import { star } from './star.ts';
import type { NetworkTopology } from './topology.ts';
import type { PatternName } from './traffic.ts';

export const topologyNames = ['pair', 'star', 'leaf-spine', 'rail-optimised', 'fat-tree'] as const;
export type TopologyName = (typeof topologyNames)[number];

interface PatternTopologyOptions {
  readonly name: TopologyName;
  readonly hosts: number;
  readonly paths: number;
  /** Network cards of a host, which share its rate. */
  readonly rails: number;
  readonly seed: number;
  /** Of a host, all its links together. */
  readonly gigabitsPerSecond: number;
  /** Of each link but those that `fault` changes. */
  readonly link: Partial<Omit<LinkOptions, 'gigabitsPerSecond'>>;
}

/** The network that suits a pattern if none is named. */
export const usualTopology: Readonly<Record<PatternName, TopologyName>> = {
  pair: 'pair',
  incast: 'star',
  permutation: 'leaf-spine',
  'all-to-all': 'leaf-spine',
};

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
