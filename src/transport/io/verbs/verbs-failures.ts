// What went wrong over the queue pairs of an engine, counted.

/** Counters of what did not go out or come in. */
export interface VerbsFailures {
  /** Queue pairs that have failed. */
  queuePairs: number;
  /** Packets given up because their queue pair had failed, or would not take them. */
  unsent: number;
  /** Packets that came with an error, such as messages of which a part was lost. */
  broken: number;
  /** Packets of queue pairs that are not the peer's. */
  strangers: number;
}
