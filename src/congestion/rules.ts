// The rules of congestion control by name. A new one is a file of its own and a line here: settings, commands, simulator
// and the tests that all rules pass take their names from this table.
import type { AckSample, Congestion, CongestionRule } from './congestion.ts';
import { swift } from './swift.ts';
import { timely, timelyUccl } from './timely.ts';

// CUBIC (RFC 9438): a window that loss cuts, and that grows back along a cubic curve around where it was cut.

interface CubicOptions {
  readonly segmentBytes: number;
  readonly maxWindow: number;
  /** In segments. */
  readonly initialWindow?: number;
}

const cubic: CongestionRule = {
  summary: 'by loss',
  create: (options) => new Cubic(options),
};

const C = 0.4;
const BETA = 0.7;
/** Growth of the Reno-friendly window per round trip that gives the same average as Reno. */
const RENO_GROWTH = (3 * (1 - BETA)) / (1 + BETA);
const MICROSECONDS = 1e6;

export class Cubic implements Congestion {
  readonly rate = Number.POSITIVE_INFINITY;
  readonly #segment: number;
  /** All windows below are in segments. */
  readonly #max: number;
  #window: number;
  #slowStartEnd = Number.POSITIVE_INFINITY;
  #windowAtLoss = 0;
  /** Seconds from the loss until the curve is back at the window of the loss. */
  #k = 0;
  #epoch = Number.NaN;
  #reno = 0;
  #lastDecrease = Number.NEGATIVE_INFINITY;
  #rtt = 0;
  #lastAck = Number.NaN;

  constructor(options: CubicOptions) {
    this.#segment = options.segmentBytes;
    this.#max = Math.max(1, options.maxWindow / options.segmentBytes);
    this.#window = Math.min(options.initialWindow ?? 64, this.#max);
  }

  get windowBytes(): number {
    return this.#window * this.#segment;
  }

  onAck({ now, ackedBytes, rtt, marked }: AckSample): void {
    if (rtt > 0) this.#rtt = rtt;
    this.#leaveOutIdleTime(now);
    if (marked) {
      this.onLoss(now);
      return;
    }
    const acked = ackedBytes / this.#segment;
    if (this.#window < this.#slowStartEnd) {
      this.#window = Math.min(this.#window + acked, this.#max);
      return;
    }
    if (Number.isNaN(this.#epoch)) this.#begin(now);
    const t = (now + this.#rtt - this.#epoch) / MICROSECONDS;
    this.#reno += (RENO_GROWTH * acked) / this.#window;
    const curve = C * (t - this.#k) ** 3 + this.#windowAtLoss;
    const target = Math.min(Math.max(curve, this.#window), 1.5 * this.#window);
    const grown = this.#window + ((target - this.#window) / this.#window) * acked;
    this.#window = Math.min(Math.max(grown, this.#reno), this.#max);
  }

  /** At most once per round trip: one overflow of a queue loses many packets. */
  onLoss(now: number): void {
    if (now - this.#lastDecrease < this.#rtt) return;
    this.#cut(now);
    this.#window = Math.max(1, this.#window * BETA);
  }

  onTimeout(now: number): void {
    if (now - this.#lastDecrease < this.#rtt) return;
    this.#cut(now);
    this.#window = 1;
  }

  /** What is sent is acknowledged after a round trip: where no ack came for longer, nothing was sent, and nothing grew. */
  #leaveOutIdleTime(now: number): void {
    const idle = now - this.#lastAck - this.#rtt;
    if (idle > 0) this.#epoch += idle;
    this.#lastAck = now;
  }

  #cut(now: number): void {
    this.#lastDecrease = now;
    // A window that did not get back to where it was leaves room for others (fast convergence).
    this.#windowAtLoss = this.#window < this.#windowAtLoss ? (this.#window * (1 + BETA)) / 2 : this.#window;
    this.#slowStartEnd = Math.max(2, this.#window * BETA);
    this.#epoch = Number.NaN;
  }

  #begin(now: number): void {
    this.#epoch = now;
    this.#windowAtLoss = Math.max(this.#windowAtLoss, this.#window);
    this.#k = Math.cbrt((this.#windowAtLoss - this.#window) / C);
    this.#reno = this.#window;
  }
}

// A window that never changes; infinite, it is no congestion control at all.

const fixed: CongestionRule = {
  summary: 'a window that never changes',
  create: ({ maxWindow }) => new FixedWindow(maxWindow),
};

const none: CongestionRule = {
  summary: 'no bound',
  create: () => new FixedWindow(Number.POSITIVE_INFINITY),
};

/** EQDS (Olteanu et al., NSDI 2022): the receiver's credits decide, at the speed of its link; the window only bounds them. */
const eqds: CongestionRule = {
  summary: 'by credits of the receiver alone',
  receiverCredits: true,
  create: ({ maxWindow }) => new FixedWindow(maxWindow),
};

class FixedWindow implements Congestion {
  readonly windowBytes: number;
  readonly rate = Number.POSITIVE_INFINITY;

  constructor(windowBytes: number) {
    this.windowBytes = windowBytes;
  }

  onAck(): void {}
  onLoss(): void {}
  onTimeout(): void {}
}

export const congestionRules = {
  swift,
  timely,
  'timely-uccl': timelyUccl,
  cubic,
  eqds,
  fixed,
  none,
} as const satisfies Record<string, CongestionRule>;

export type CongestionName = keyof typeof congestionRules;

export const congestionNames = Object.keys(congestionRules) as readonly CongestionName[];

/** "swift (by delay), …", for descriptions of the setting. */
export const congestionSummary: string = Object.entries(congestionRules)
  .map(([name, { summary }]) => `${name} (${summary})`)
  .join(', ');
