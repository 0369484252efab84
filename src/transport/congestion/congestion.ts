// What congestion control is to the transport: how many bytes may go now, and what it learns from acks and losses.

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
  /** Bytes that may be sent now with `inFlight` bytes on their way; may be negative. */
  allowance(inFlight: number): number;
  onSend(bytes: number): void;
  onAck(sample: AckSample): void;
  /** Something sent was lost; `now` in microseconds. */
  onLoss(now: number): void;
  /** A path fell silent. */
  onTimeout(now: number): void;
}
