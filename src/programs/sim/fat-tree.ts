// The three-level fat tree of k-port switches (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008): k³/4 hosts, (k/2)² shortest paths between pods.
import type { LinkOptions } from './link.ts';
import { ARRIVED, ecmpHash, type NetworkTopology } from './topology.ts';

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
