// The address by which other hosts reach this one, where its own route does not tell: on the host that its own name calls
// 127.0.1.1, as Debian does, the route to that name stays within the host. Ranks of other hosts know which address they called.
import { networkInterfaces } from 'node:os';
import { getEnvironmentData, setEnvironmentData } from 'node:worker_threads';
import { isLoopback } from './loopback.ts';

const REACHED = 'weftline.reachedAddress';

/**
 * `called`: by rank, the address at which each has called the store of the job, as it says; `own`: that of this rank. If it
 * is a loopback address the store is on this host, so that the address that others called is this host's. Holds for threads
 * that start later.
 */
export function noteReachedAddress(called: readonly unknown[], own: string): void {
  if (!isLoopback(own)) return;
  const addresses = called.filter((address) => typeof address === 'string');
  const reached = addresses.find((address) => !isLoopback(address) && isOwn(address));
  if (reached !== undefined) setEnvironmentData(REACHED, reached);
}

/** Undefined if no other host has told it. */
export function reachedAddress(): string | undefined {
  const reached = getEnvironmentData(REACHED);
  return typeof reached === 'string' ? reached : undefined;
}

/** Not behind a translation of addresses, where others call an address that nothing here can listen at. */
function isOwn(address: string): boolean {
  return Object.values(networkInterfaces()).some((entries) => entries?.some((entry) => entry.address === address));
}
