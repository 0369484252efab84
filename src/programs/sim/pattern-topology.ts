// Which network a traffic pattern runs on, from a few numbers.
import { invalidArgument } from '../../core/errors.ts';
import { fatTree } from './fat-tree.ts';
import { leafSpine } from './leaf-spine.ts';
import { defaultLink, type LinkOptions } from './link.ts';
import { rails } from './rails.ts';
import type { NetworkTopology } from './topology.ts';
import type { PatternName } from './traffic.ts';

export const topologyNames = ['pair', 'star', 'rails', 'leaf-spine', 'fat-tree'] as const;
export type TopologyName = (typeof topologyNames)[number];

export interface PatternTopologyOptions {
  readonly name: TopologyName;
  readonly hosts: number;
  readonly paths: number;
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
};

/**
 * - pair: two hosts with one link each; behind it, one link of the same rate per path.
 * - star: one switch.
 * - rails: a switch per path; a host's rate is shared out among its links.
 * - leaf-spine: two levels without oversubscription, about as many hosts at a leaf as there are leaves.
 * - fat-tree: three levels of k-port switches; k³/4 hosts.
 */
export function patternTopology(options: PatternTopologyOptions): NetworkTopology {
  const { name, hosts, paths, seed, gigabitsPerSecond } = options;
  const link: LinkOptions = { ...defaultLink, ...options.link, gigabitsPerSecond };
  switch (name) {
    case 'pair':
      if (hosts !== 2) throw invalidArgument('hosts of the topology pair', hosts, '2');
      return leafSpine({ leaves: 2, hostsPerLeaf: 1, spines: paths, link, fabric: link, ecmp: 'path' });
    case 'star':
      return rails({ hosts, rails: 1, link });
    case 'rails':
      return rails({ hosts, rails: paths, link: { ...link, gigabitsPerSecond: gigabitsPerSecond / paths } });
    case 'leaf-spine': {
      const hostsPerLeaf = largestDivisor(hosts);
      const leaves = hosts / hostsPerLeaf;
      return leafSpine({ leaves, hostsPerLeaf, spines: hostsPerLeaf, link, fabric: link, ecmp: seed });
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
      return fatTree({ ports, link, fabric: link, ecmp: seed });
    }
  }
}

/** The largest divisor that is at most the square root. */
function largestDivisor(count: number): number {
  let divisor = Math.floor(Math.sqrt(count));
  while (count % divisor !== 0) divisor -= 1;
  return divisor;
}
