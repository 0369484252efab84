// TIMELY (Mittal et al., SIGCOMM 2015) with the weighted gradient of "ECN or Delay" (Zhu et al., CoNEXT 2016): a rate.
import type { AckSample, Congestion } from './congestion.ts';

export interface TimelyOptions {
  readonly segmentBytes: number;
  /** Bytes per microsecond: where the rate begins, and its upper end. */
  readonly linkRate: number;
  /** Below this time in queues the rate grows, in microseconds. */
  readonly low: number;
  /** Above this one it shrinks whatever the gradient. */
  readonly high: number;
  readonly maxWindow: number;
}

const GAIN = 0.125;
/** Share of the rate that a round trip of twice the low one takes; the papers' 0.008 needs longer to become fair. */
const BETA = 0.025;
/** Flows of one link that settle at twice the low round trip: there the increase is as much as the decrease. */
const FLOWS_AT_TWICE_LOW = 8;
/** Shortest round-trip time that counts, in microseconds. */
const MIN_RTT = 2;

export class Timely implements Congestion {
  rate: number;
  windowBytes: number;
  readonly #options: TimelyOptions;
  readonly #addRate: number;
  readonly #minRate: number;
  #previousRtt = 0;
  #averageDifference = 0;
  #updatedAt = Number.NEGATIVE_INFINITY;
  /** Whether the newest round trip took longer than the low threshold, and when a loss last halved the rate. */
  #above = false;
  #halvedAt = Number.NEGATIVE_INFINITY;

  constructor(options: TimelyOptions) {
    this.#options = options;
    this.#addRate = (options.linkRate * BETA) / FLOWS_AT_TWICE_LOW;
    this.#minRate = options.linkRate / 125;
    this.rate = options.linkRate;
    this.windowBytes = options.maxWindow;
  }

  allowance(inFlight: number): number {
    return this.windowBytes - inFlight;
  }

  onSend(): void {}

  onAck({ now, rtt, baseRtt }: AckSample): void {
    if (rtt < MIN_RTT) return;
    const { linkRate, low, high, maxWindow, segmentBytes } = this.#options;
    // The paper's thresholds are for a known network; here the network's own share is measured.
    const lowRtt = baseRtt + low;
    const highRtt = baseRtt + high;
    const difference = this.#previousRtt === 0 ? 0 : rtt - this.#previousRtt;
    this.#averageDifference = (1 - GAIN) * this.#averageDifference + GAIN * difference;
    // Acks that come in a bunch count as little as the time between them.
    const share = Math.min((now - this.#updatedAt) / rtt, 1);
    const increase = this.#addRate * share;
    this.#above = rtt >= lowRtt;
    let next: number;
    if (rtt < lowRtt) {
      next = this.rate + increase;
    } else if (rtt > highRtt) {
      next = this.rate * (1 - BETA * share * (1 - highRtt / rtt));
    } else {
      const gradient = this.#averageDifference / Math.max(baseRtt, MIN_RTT);
      const weight = Math.min(Math.max(2 * gradient + 0.5, 0), 1);
      const error = (rtt - lowRtt) / lowRtt;
      next = this.rate * (1 - BETA * share * weight * error) + increase * (1 - weight);
    }
    this.#updatedAt = now;
    this.#previousRtt = rtt;
    this.rate = Math.min(Math.max(next, this.rate / 2, this.#minRate), linkRate);
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
    this.rate = Math.max(this.rate / 2, this.#minRate);
  }

  onTimeout(): void {
    this.rate = Math.max(this.rate / 2, this.#minRate);
  }
}
