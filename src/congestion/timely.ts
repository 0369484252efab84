// TIMELY (Mittal et al., SIGCOMM 2015) with the weighted gradient of "ECN or Delay" (Zhu et al., CoNEXT 2016): a rate.
import type { AckSample, Congestion, CongestionRule } from './congestion.ts';

/** What tells one TIMELY from another. Times in microseconds, rates in bytes per microsecond. */
interface TimelyOptions {
  readonly segmentBytes: number;
  /** Where the rate begins, and its upper end. */
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

/** Of a new difference of round trips in their average. */
const GAIN = 0.125;
/** Shortest round-trip time that counts. */
const MIN_RTT = 2;
/** Share of the rate that a round trip of twice the low one takes; the papers' 0.008 needs longer to become fair. */
const BETA = 0.025;
/** Flows of one link that settle at twice the low round trip: there the increase is as much as the decrease. */
const FLOWS_AT_TWICE_LOW = 8;

export const timely: CongestionRule = {
  summary: 'by the gradient of the delay',
  create: ({ segmentBytes, linkRate, targetDelay, maxWindow }) =>
    new Timely({
      segmentBytes,
      linkRate,
      maxWindow,
      low: targetDelay,
      high: 10 * targetDelay,
      isRelative: true,
      beta: BETA,
      addRate: (linkRate * BETA) / FLOWS_AT_TWICE_LOW,
      minRate: linkRate / 125,
    }),
};

/** With the constants that UCCL's RDMA transport is compiled with, for networks of 100 Gb/s and short cables. */
export const timelyUccl: CongestionRule = {
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
