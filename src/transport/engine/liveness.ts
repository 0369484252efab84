// Whether a connection is wanted, answered and open: requests that wait, probes of a silent peer, and its end.

/**
 * The packet that ends a connection also acknowledges what has come, and nobody acknowledges it: the sockets close behind
 * it. It goes several times, so that a lost packet does not fail requests of the peer that were done.
 */
const END_PACKETS = 3;

export class Liveness {
  /** Requests that are not done, and since when there have been any: Infinity until the next `onTimer` tells the time. */
  pending = 0;
  pendingSince = 0;
  /** When and where the peer was last asked whether it is there. */
  probedAt = 0;
  probedPath = 0;
  /** Why the end is to be told to the peer, 0 while open; and how many packets are still to say it. */
  endReason = 0;
  endsUnsent = 0;
  endedAt = 0;

  addPending(): void {
    if (this.pending === 0) this.pendingSince = Number.POSITIVE_INFINITY;
    this.pending++;
  }

  end(reason: number, now: number): void {
    this.endReason = reason;
    this.endsUnsent = reason === 0 ? 0 : END_PACKETS;
    this.endedAt = now;
  }
}
