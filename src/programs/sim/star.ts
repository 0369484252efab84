// One switch to which every host is connected.
import type { LinkOptions } from './link.ts';
import { ARRIVED, type NetworkTopology } from './topology.ts';

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
