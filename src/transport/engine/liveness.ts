// Whether a connection is wanted, answered and open: requests that wait, probes of a silent peer, and its end.

export class Liveness {
  /** Requests that are not done, and since when there have been any: Infinity until the next `onTimer` tells the time. */
  pending = 0;
  pendingSince = 0;
  /** When and where the peer was last asked whether it is there. */
  probedAt = 0;
  probedPath = 0;
  /** Why the end is to be told to the peer, 0 while open; and whether that is still to be sent. */
  endReason = 0;
  endUnsent = false;
  endedAt = 0;

  addPending(): void {
    if (this.pending === 0) this.pendingSince = Number.POSITIVE_INFINITY;
    this.pending++;
  }

  end(reason: number, now: number): void {
    this.endReason = reason;
    this.endUnsent = reason !== 0;
    this.endedAt = now;
  }
}
