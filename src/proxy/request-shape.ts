// A request as its host knows it: one local range, the ranges of one peer, and how each is reached.

export interface RequestShape {
  /** What commands call it. */
  readonly number: number;
  /** Number of the peer at this host. */
  readonly peer: number;
  readonly local: { readonly address: number; readonly bytes: number };
  readonly remotes: readonly {
    /** Where this process has mapped the range; 0 if its writes go through the queue. */
    readonly direct: number;
    readonly bytes: number;
  }[];
}
