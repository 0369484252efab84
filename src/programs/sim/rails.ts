// Rails: every host has a link to and from each of several switches that are not connected to one another; path p takes rail p.
import type { LinkOptions } from './link.ts';
import { ARRIVED, type NetworkTopology } from './topology.ts';

export interface RailsOptions {
  readonly hosts: number;
  /** One rail is a star. */
  readonly rails: number;
  readonly link: LinkOptions;
}

/** Link (host, rail) up is number host * rails + rail; those down follow. */
export function rails({ hosts, rails: count, link }: RailsOptions): NetworkTopology {
  const ups = hosts * count;
  return {
    name: count === 1 ? `star of ${hosts} hosts` : `${hosts} hosts on ${count} rails`,
    hosts,
    links: Array.from({ length: 2 * ups }, () => link),
    firstLink: (source, _destination, path) => source * count + (path % count),
    nextLink: (at, _source, destination, path) => (at < ups ? ups + destination * count + (path % count) : ARRIVED),
  };
}
