// What a link is: its rate, its delay, the queue before it, and everything that can go wrong on it.

export interface LinkOptions {
  readonly gigabitsPerSecond: number;
  /** Propagation, in microseconds. */
  readonly delay: number;
  /** Bytes that may wait before the link; a packet that does not fit is dropped. */
  readonly queueBytes: number;
  /** A packet that finds more bytes waiting than this is marked (ECN). */
  readonly ecnBytes: number;
  /** Probability that a packet is lost. */
  readonly loss: number;
  /** Probability that a packet takes up to `jitter` microseconds longer, so that others overtake it. */
  readonly reorder: number;
  readonly jitter: number;
  /** Probability that a packet arrives twice. */
  readonly duplicate: number;
  /** Probability that a packet arrives with changed bytes. */
  readonly corrupt: number;
}

/** 100 Gbps, 1 µs, a megabyte of queue, and nothing goes wrong. */
export const defaultLink: LinkOptions = {
  gigabitsPerSecond: 100,
  delay: 1,
  queueBytes: 1_000_000,
  ecnBytes: Number.POSITIVE_INFINITY,
  loss: 0,
  reorder: 0,
  jitter: 0,
  duplicate: 0,
  corrupt: 0,
};

/** Why packets did not arrive, and what else happened to them. */
export interface NetworkCounts {
  readonly sent: number;
  readonly delivered: number;
  /** No room in a queue. */
  readonly droppedFull: number;
  /** Random loss. */
  readonly droppedLoss: number;
  /** On a link that was down, or that failed before the packet arrived. */
  readonly droppedDown: number;
  readonly marked: number;
  readonly duplicated: number;
  readonly corrupted: number;
  readonly delayed: number;
}
