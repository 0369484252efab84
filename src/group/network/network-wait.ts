// What a collective object waits for across hosts, and whether a peer that has closed its side still owes something of it.

export interface NetworkWait {
  /** Asked after each look at the network; does the work that has become possible. */
  isDone(): boolean;
  /** True if something of this peer is missing, as of the last isDone(). One that has closed its side sends nothing more. */
  awaits(peer: number): boolean;
  /** The begin of a sentence for the error of a wait that takes too long. */
  describe(): string;
}

/** Whether a peer that was just seen to have closed its side still owes something. */
export function owes(peer: number, what: Pick<NetworkWait, 'isDone' | 'awaits'>): boolean {
  // ORDER: what it sent before it closed is here by now, but may have come since the last look.
  return !what.isDone() && what.awaits(peer);
}
