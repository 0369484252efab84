// Whether an object of ranks on several hosts, or on one, can still be used.
import type { LocalBarrier } from '../../windows/local-barrier.ts';
import type { HostNetwork } from './host-network.ts';

/** At the begin of each call. When the ranks of this host gave up, peers that have not heard of it wait for this rank. */
export function throwIfUnusable(barrier: LocalBarrier, network: HostNetwork | undefined): void {
  try {
    barrier.throwIfUnusable();
  } catch (error) {
    network?.giveUp(error);
    throw error;
  }
}
