// What congestion control is: how many bytes may be in flight, and what it learns from acks and losses.

/** One object serves all acks of an engine. */
export interface AckSample {
  /** Microseconds. */
  now: number;
  /** Bytes of the window that have arrived since the sample before, headers included. */
  ackedBytes: number;
  /** Round-trip time in microseconds without the receiver's hold; 0 if the ack brought none. */
  rtt: number;
  /** The shortest round-trip time of the same paths: what is more is time in queues. 0 with `rtt` 0. */
  baseRtt: number;
  /** True if the network marked packets of the window (ECN). */
  marked: boolean;
}

/** State of one window: of a flow, or of a path. The rule that changes it reads nothing but its arguments. */
export interface Congestion {
  /** Bytes that may be in flight; Infinity if nothing bounds them. */
  readonly windowBytes: number;
  /** Bytes per microsecond at which packets are spaced; Infinity without pacing. */
  readonly rate: number;
  onAck(sample: AckSample): void;
  /** Something sent was lost; `now` in microseconds. */
  onLoss(now: number): void;
  /** A path fell silent. */
  onTimeout(now: number): void;
}

/** What the rules are told of the connection and the settings. */
export interface CongestionOptions {
  /** A full packet, header included. */
  readonly segmentBytes: number;
  /** Bytes that a window never exceeds. */
  readonly maxWindow: number;
  /** Time in queues beyond the shortest round trip that is accepted, in microseconds. */
  readonly targetDelay: number;
  /** Bytes per microsecond that this host can send over all its links. */
  readonly linkRate: number;
}

/** A rule as the table lists it. */
export interface CongestionRule {
  /** For the description of the setting, after the rule's name. */
  readonly summary: string;
  /** The receiver gives credits as well, as with the setting `transportReceiverCredits`. */
  readonly receiverCredits?: boolean;
  /** The state of one window. */
  create(options: CongestionOptions): Congestion;
}
