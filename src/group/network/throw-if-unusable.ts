// Whether an object of ranks on several hosts, or on one, can still be used.
import type { LocalBarrier } from '../../windows/local-barrier.ts';
import type { HostNetwork } from './host-network.ts';

/** Called at the begin of each call. Peers that have not heard that this host's ranks gave up would wait for this rank. */
export function throwIfUnusable(barrier: LocalBarrier, network: HostNetwork | undefined): void {
  try {
    barrier.throwIfUnusable();
  } catch (error) {
    network?.giveUp(error);
    throw error;
  }
}
