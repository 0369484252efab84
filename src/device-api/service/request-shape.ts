// A request as its host knows it: one local range, the ranges of one peer, and how each is reached.

export interface RequestShape {
  /** What commands call it. */
  readonly number: number;
  /** Number of the peer at this host. */
  readonly peer: number;
  /** Puts of 8 bytes travel in their command: reading them would take the host a copy of the device. */
  readonly inlines: boolean;
  readonly local: { readonly address: number; readonly bytes: number };
  readonly remotes: readonly {
    /** Where this process has mapped the range; 0 if its writes go through the queue. */
    readonly direct: number;
    readonly bytes: number;
  }[];
}
