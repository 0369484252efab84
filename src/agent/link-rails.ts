// What an agent says of the network cards that a link to a peer goes over.
import type { FileProbe } from '../native/file-probe.ts';
import { type HostInterface, hostInterfaces } from '../rails/host-interfaces.ts';
import { planRails } from '../rails/nearest-rail.ts';
import type { RailState } from '../transport/index.ts';

/** A network card of this host, and the one of the peer that packets from it go to, with how it stands. */
export interface LinkRail extends RailState {
  /** Name of this host's network interface; left out if no interface has the address any more. */
  readonly name?: string;
  /** PCI addresses of the GPUs that are nearer to it than to the other rails of the link. */
  readonly gpus: readonly string[];
}

/** `files` and `interfaces`: those of this host if missing. */
export function describeRails(
  pairs: readonly RailState[],
  files?: FileProbe,
  interfaces: readonly HostInterface[] = hostInterfaces(),
): readonly LinkRail[] {
  const known = pairs.filter(({ local }) => interfaces.some(({ addresses }) => addresses.includes(local)));
  const list = known.map(({ local }) => local).join();
  const plan = list === '' ? { rails: [], gpus: [] } : planRails(list, files, interfaces);
  return pairs.map((pair) => {
    const rail = plan.rails.find(({ address }) => address === pair.local);
    const gpus = plan.gpus.filter((gpu) => rail !== undefined && gpu.rail === rail.name).map(({ gpu }) => gpu);
    return { ...pair, ...(rail === undefined ? {} : { name: rail.name }), gpus };
  });
}
