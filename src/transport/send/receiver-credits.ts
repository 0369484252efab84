// Receiver credits, the sender's side (EQDS): bytes that the receiver allowed, whatever congestion control allows besides.

/** What a sender may send before any credit has come, and what an idle one keeps: both ends count from here. */
export const SPECULATIVE_BYTES = 262_144;

export class ReceiverCredits {
  /** Bytes that were allowed so far and bytes that were sent, as integers that wrap. */
  #granted: number;
  #spent: number;

  /** Both ends count from `start`. */
  constructor(start = 0) {
    this.#granted = (start + SPECULATIVE_BYTES) | 0;
    this.#spent = start;
  }

  get spent(): number {
    return this.#spent;
  }

  /** May be negative: a segment that is always admitted may spend more than there is; the next credit pays the debt. */
  get left(): number {
    return (this.#granted - this.#spent) | 0;
  }

  /** The `credit` of an ack; an old one changes nothing. */
  onCredit(granted: number): void {
    if (((granted - this.#granted) | 0) > 0) this.#granted = granted;
  }

  onSend(bytes: number): void {
    this.#spent = (this.#spent + bytes) | 0;
  }
}
