// What an agent says of the network cards that a link to a peer goes over.
import type { FileProbe } from '../native/file-probe.ts';
import { type HostInterface, hostInterfaces } from '../rails/host-interfaces.ts';
import { planRails } from '../rails/nearest-rail.ts';
import type { RailPair } from '../transport/index.ts';

/** A network card of this host, and the one of the peer that packets from it go to. */
export interface LinkRail {
  /** Addresses. */
  readonly local: string;
  readonly remote: string;
  /** Name of this host's network interface; left out if no interface has the address any more. */
  readonly name?: string;
  /** PCI addresses of the GPUs that are nearer to it than to the other rails of the link. */
  readonly gpus: readonly string[];
}

/** `files` and `interfaces`: those of this host if missing. */
export function describeRails(
  pairs: readonly RailPair[],
  files?: FileProbe,
  interfaces: readonly HostInterface[] = hostInterfaces(),
): readonly LinkRail[] {
  const known = pairs.filter(({ local }) => interfaces.some(({ addresses }) => addresses.includes(local)));
  const list = known.map(({ local }) => local).join();
  const plan = list === '' ? { rails: [], gpus: [] } : planRails(list, files, interfaces);
  return pairs.map(({ local, remote }) => {
    const rail = plan.rails.find(({ address }) => address === local);
    const gpus = plan.gpus.filter((gpu) => rail !== undefined && gpu.rail === rail.name).map(({ gpu }) => gpu);
    return { local, remote, ...(rail === undefined ? {} : { name: rail.name }), gpus };
  });
}
