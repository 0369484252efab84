// Congestion control: how many bytes may be in flight, what that is learnt from, and the rules by name. A new one is a class
// and a line of the table here: settings, commands, simulator and the tests that all rules pass take their names from it.

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
  /** Text for the description of the setting, after the rule's name. */
  readonly summary: string;
  /** The receiver gives credits as well, as with the setting `transportReceiverCredits`. */
  readonly receiverCredits?: boolean;
  /** The state of one window. */
  create(options: CongestionOptions): Congestion;
}

// Swift (Kumar et al., SIGCOMM 2020): a window that grows while the delay is below a target and shrinks above it.

interface SwiftOptions {
  readonly segmentBytes: number;
  /** The window begins here and never grows beyond. */
  readonly maxWindow: number;
  /** Time in queues that a flow with a large window may see, in microseconds. */
  readonly baseTarget: number;
  /** Added to the target of small windows, in microseconds: with many flows, queues are longer (flow scaling). */
  readonly flowScalingRange?: number;
  /** Segments that the window grows by in one round trip. */
  readonly additiveIncrease?: number;
}

/** Round trips that the window takes from half to the whole. */
const ROUND_TRIPS_TO_RECOVER = 64;

const swift: CongestionRule = {
  summary: 'by delay',
  create: ({ segmentBytes, maxWindow, targetDelay }) =>
    new Swift({
      segmentBytes,
      maxWindow,
      baseTarget: targetDelay,
      additiveIncrease: Math.max(1, maxWindow / 2 / ROUND_TRIPS_TO_RECOVER / segmentBytes),
    }),
};

const SWIFT_BETA = 0.8;
const MAX_DECREASE = 0.5;
/** Windows, in segments, between which flow scaling goes from its full range to nothing. */
const SCALING_FROM = 32;
const SCALING_TO = 100;
/** Smallest window in segments; below one, packets are spaced. */
const MIN_SEGMENTS = 1 / 16;

export class Swift implements Congestion {
  windowBytes: number;
  rate = Number.POSITIVE_INFINITY;
  readonly #segment: number;
  readonly #max: number;
  readonly #baseTarget: number;
  readonly #range: number;
  readonly #increase: number;
  readonly #alpha: number;
  #lastDecrease = Number.NEGATIVE_INFINITY;
  #rtt = 0;
  #above = false;

  constructor(options: SwiftOptions) {
    this.#segment = options.segmentBytes;
    this.#max = options.maxWindow;
    this.#baseTarget = options.baseTarget;
    this.#range = options.flowScalingRange ?? 5 * options.baseTarget;
    this.#increase = (options.additiveIncrease ?? 1) * options.segmentBytes;
    this.#alpha = this.#range / (1 / Math.sqrt(SCALING_FROM) - 1 / Math.sqrt(SCALING_TO));
    this.windowBytes = options.maxWindow;
  }

  /** The time in queues that the window as it is should see, in microseconds. */
  target(): number {
    const segments = this.windowBytes / this.#segment;
    const scaled = this.#alpha / Math.sqrt(segments) - this.#alpha / Math.sqrt(SCALING_TO);
    return this.#baseTarget + Math.min(Math.max(scaled, 0), this.#range);
  }

  onAck({ now, ackedBytes, rtt, baseRtt }: AckSample): void {
    if (rtt <= 0) return;
    this.#rtt = rtt;
    // The paper's target is a delay for a known network; here the network's own share is measured.
    const target = baseRtt + this.target();
    this.#above = rtt >= target;
    if (!this.#above) {
      // The window is acknowledged once in one round trip, so that these parts add up to the increase.
      const parts = ackedBytes / Math.max(this.windowBytes, this.#segment);
      this.#set(this.windowBytes + this.#increase * parts);
    } else if (now - this.#lastDecrease >= rtt) {
      this.#lastDecrease = now;
      this.#set(this.windowBytes * Math.max(1 - (SWIFT_BETA * (rtt - target)) / rtt, 1 - MAX_DECREASE));
    }
  }

  /** Unlike the paper's: a loss at low delay is not congestion, but the network's or a switch's own fault. */
  onLoss(now: number): void {
    if (this.#above) this.#halve(now);
  }

  onTimeout(now: number): void {
    this.#halve(now);
  }

  #halve(now: number): void {
    if (now - this.#lastDecrease < this.#rtt) return;
    this.#lastDecrease = now;
    this.#set(this.windowBytes * (1 - MAX_DECREASE));
  }

  #set(window: number): void {
    this.windowBytes = Math.min(Math.max(window, MIN_SEGMENTS * this.#segment), this.#max);
    const paced = this.windowBytes < this.#segment && this.#rtt > 0;
    this.rate = paced ? this.windowBytes / this.#rtt : Number.POSITIVE_INFINITY;
  }
}

// TIMELY (Mittal et al., SIGCOMM 2015) with the weighted gradient of "ECN or Delay" (Zhu et al., CoNEXT 2016): a rate.

/** What tells one TIMELY from another. Times in microseconds, rates in bytes per microsecond. */
interface TimelyOptions {
  readonly segmentBytes: number;
  /** The rate at the begin, and its upper end. */
  readonly linkRate: number;
  readonly maxWindow: number;
  /** Below this round trip the rate grows; above `high` it shrinks whatever the gradient. */
  readonly low: number;
  readonly high: number;
  /**
   * True: `low` and `high` are time in queues on top of the shortest round trip, which is also what gradients and the time
   * between acks are measured in. False: they are round trips of a known network, and `MIN_RTT` is the unit.
   */
  readonly isRelative: boolean;
  /** Largest share of the rate that one step takes. */
  readonly beta: number;
  /** What one step adds. */
  readonly addRate: number;
  readonly minRate: number;
}

/** The share of a new difference of round trips in their average. */
const GAIN = 0.125;
/** Shortest round-trip time that counts. */
const MIN_RTT = 2;
/** Share of the rate that a round trip of twice the low one takes; the papers' 0.008 needs longer to become fair. */
const TIMELY_BETA = 0.025;
/** Flows of one link that settle at twice the low round trip: there the increase is as much as the decrease. */
const FLOWS_AT_TWICE_LOW = 8;

const timely: CongestionRule = {
  summary: 'by the gradient of the delay',
  create: ({ segmentBytes, linkRate, targetDelay, maxWindow }) =>
    new Timely({
      segmentBytes,
      linkRate,
      maxWindow,
      low: targetDelay,
      high: 10 * targetDelay,
      isRelative: true,
      beta: TIMELY_BETA,
      addRate: (linkRate * TIMELY_BETA) / FLOWS_AT_TWICE_LOW,
      minRate: linkRate / 125,
    }),
};

/** TIMELY with the constants that UCCL's RDMA transport is compiled with, for networks of 100 Gb/s and short cables. */
const timelyUccl: CongestionRule = {
  summary: 'the same with the constants of UCCL',
  create: ({ segmentBytes, linkRate, maxWindow }) =>
    new Timely({
      segmentBytes,
      linkRate,
      maxWindow,
      low: 35,
      high: 350,
      isRelative: false,
      beta: 0.008,
      addRate: 500,
      minRate: Math.min(100, linkRate),
    }),
};

class Timely implements Congestion {
  rate: number;
  windowBytes: number;
  readonly #options: TimelyOptions;
  #previousRtt = 0;
  #averageDifference = 0;
  #updatedAt = Number.NEGATIVE_INFINITY;
  /** Whether the newest round trip took longer than the low threshold, and when a loss last halved the rate. */
  #above = false;
  #halvedAt = Number.NEGATIVE_INFINITY;

  constructor(options: TimelyOptions) {
    this.#options = options;
    this.rate = options.linkRate;
    this.windowBytes = options.maxWindow;
  }

  onAck({ now, rtt, baseRtt }: AckSample): void {
    if (rtt < MIN_RTT) return;
    const { linkRate, maxWindow, segmentBytes, isRelative, beta, addRate, minRate } = this.#options;
    // The paper's thresholds are for a known network; else the network's own share is measured.
    const base = isRelative ? baseRtt : 0;
    const low = base + this.#options.low;
    const high = base + this.#options.high;
    const difference = this.#previousRtt === 0 ? 0 : rtt - this.#previousRtt;
    this.#averageDifference = (1 - GAIN) * this.#averageDifference + GAIN * difference;
    // Acks that come in a bunch count as little as the time between them.
    const share = Math.min((now - this.#updatedAt) / (isRelative ? rtt : MIN_RTT), 1);
    const increase = addRate * share;
    this.#above = rtt >= low;
    let next: number;
    if (rtt < low) {
      next = this.rate + increase;
    } else if (rtt > high) {
      next = this.rate * (1 - beta * share * (1 - high / rtt));
    } else {
      const gradient = this.#averageDifference / Math.max(base, MIN_RTT);
      const weight = Math.min(Math.max(2 * gradient + 0.5, 0), 1);
      const error = (rtt - low) / low;
      next = this.rate * (1 - beta * share * weight * error) + increase * (1 - weight);
    }
    this.#updatedAt = now;
    this.#previousRtt = rtt;
    this.rate = Math.min(Math.max(next, this.rate / 2, minRate), linkRate);
    // What the rate has in flight during a round trip, and as much again for acks that come late.
    this.windowBytes = Math.min(Math.max(2 * this.rate * rtt, 2 * segmentBytes), maxWindow);
  }

  /**
   * Unlike the paper's, which has a network without loss: the delay of a queue that overflows grows no more, so that the
   * loss must tell. A loss at low delay is not congestion, but the network's or a switch's own fault.
   */
  onLoss(now: number): void {
    if (!this.#above || now - this.#halvedAt < this.#previousRtt) return;
    this.#halvedAt = now;
    this.rate = Math.max(this.rate / 2, this.#options.minRate);
  }

  onTimeout(): void {
    this.rate = Math.max(this.rate / 2, this.#options.minRate);
  }
}

// CUBIC (RFC 9438): a window that loss cuts, and that grows back along a cubic curve around where it was cut.

interface CubicOptions {
  readonly segmentBytes: number;
  readonly maxWindow: number;
  /** First window, in segments. */
  readonly initialWindow?: number;
}

const cubic: CongestionRule = {
  summary: 'by loss',
  create: (options) => new Cubic(options),
};

const C = 0.4;
const CUBIC_BETA = 0.7;
/** Growth of the Reno-friendly window per round trip that gives the same average as Reno. */
const RENO_GROWTH = (3 * (1 - CUBIC_BETA)) / (1 + CUBIC_BETA);
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

  /** The window is cut at most once per round trip: one overflow of a queue loses many packets. */
  onLoss(now: number): void {
    if (now - this.#lastDecrease < this.#rtt) return;
    this.#cut(now);
    this.#window = Math.max(1, this.#window * CUBIC_BETA);
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
    this.#windowAtLoss = this.#window < this.#windowAtLoss ? (this.#window * (1 + CUBIC_BETA)) / 2 : this.#window;
    this.#slowStartEnd = Math.max(2, this.#window * CUBIC_BETA);
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

type CongestionName = keyof typeof congestionRules;

export const congestionNames = Object.keys(congestionRules) as readonly CongestionName[];

/** "swift (by delay), …", for descriptions of the setting. */
export const congestionSummary: string = Object.entries(congestionRules)
  .map(([name, { summary }]) => `${name} (${summary})`)
  .join(', ');
