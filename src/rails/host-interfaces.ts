// The network interfaces of this host with the addresses that peers can reach.
import { networkInterfaces } from 'node:os';

/** Only what is up and has an address that means something without a zone. */
export interface HostInterface {
  readonly name: string;
  /** Numeric; at least one. */
  readonly addresses: readonly string[];
}

/** In the natural order of their names, eth2 before eth10, so that hosts that are wired alike list them alike. */
export function hostInterfaces(): readonly HostInterface[] {
  const names = new Intl.Collator('en', { numeric: true });
  return Object.entries(networkInterfaces())
    .map(([name, entries = []]) => ({
      name,
      addresses: entries.filter(({ scopeid = 0 }) => scopeid === 0).map(({ address }) => address),
    }))
    .filter(({ addresses }) => addresses.length > 0)
    .toSorted((a, b) => names.compare(a.name, b.name));
}
