// Receiver credits, the sender's side (EQDS): bytes that the receiver allowed, whatever congestion control allows besides.

/** What a sender may send before any credit has come, and what an idle one keeps: both ends count from here. */
export const SPECULATIVE_BYTES = 262_144;

export class ReceiverCredits {
  /** Bytes that were allowed so far and bytes that were sent, as integers that wrap. */
  #granted: number;
  spent: number;

  /** Both ends count from `start`. */
  constructor(start = 0) {
    this.#granted = (start + SPECULATIVE_BYTES) | 0;
    this.spent = start;
  }

  /** May be negative: a segment that is always admitted may spend more than there is; the next credit pays the debt. */
  get left(): number {
    return (this.#granted - this.spent) | 0;
  }

  /** The `credit` of an ack; an old one changes nothing. */
  onCredit(granted: number): void {
    if (((granted - this.#granted) | 0) > 0) this.#granted = granted;
  }

  onSend(bytes: number): void {
    this.spent = (this.spent + bytes) | 0;
  }
}

// Receiver credits, the receiver's side (EQDS, Olteanu et al., NSDI 2022): credits go to senders at the speed of the link.

/** Bytes of one credit. */
const CREDIT_BYTES = 16_384;

/** The receiver's side of one connection. */
export interface CreditAccount {
  /** Highest `demand` that the peer has shown. */
  demand: number;
  granted: number;
  /** Called when credit was given: the next ack shows it. */
  given(): void;
}

/** Gives credits to the connections of an engine, one after the other, at the speed of its link. */
export class CreditPacer {
  readonly #accounts: CreditAccount[] = [];
  readonly #interval: number;
  #turn = 0;
  #next = 0;

  /** `linkRate` in bytes per microsecond. */
  constructor(linkRate: number) {
    this.#interval = CREDIT_BYTES / linkRate;
  }

  add(account: CreditAccount): void {
    this.#accounts.push(account);
  }

  remove(account: CreditAccount): void {
    const at = this.#accounts.indexOf(account);
    if (at !== -1) this.#accounts.splice(at, 1);
  }

  /** Gives what is due by `now`. */
  run(now: number): void {
    // Credits that nobody wanted are not saved up.
    if (this.#next < now - this.#interval * 4) this.#next = now - this.#interval * 4;
    while (this.#next <= now) {
      let at = this.#needy(0);
      if (at === -1) at = this.#needy(SPECULATIVE_BYTES);
      if (at === -1) return;
      const account = this.#accounts[at] as CreditAccount;
      this.#turn = at;
      this.#next += this.#interval;
      account.granted = (account.granted + CREDIT_BYTES) | 0;
      account.given();
    }
  }

  /** When credit is next due; Infinity if nobody wants any. */
  deadline(): number {
    return this.#needy(SPECULATIVE_BYTES) === -1 ? Number.POSITIVE_INFINITY : this.#next;
  }

  /** The next account in turn that has less than what it asked for and `more`; -1 if there is none. */
  #needy(more: number): number {
    const accounts = this.#accounts;
    for (let step = 1; step <= accounts.length; step++) {
      const at = (this.#turn + step) % accounts.length;
      const account = accounts[at] as CreditAccount;
      if (((account.demand + more - account.granted) | 0) > 0) return at;
    }
    return -1;
  }
}
