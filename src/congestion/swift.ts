// Swift (Kumar et al., SIGCOMM 2020): a window that grows while the delay is below a target and shrinks above it.
import type { AckSample, Congestion, CongestionRule } from './congestion.ts';

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

/** From half of the window to the whole takes this many round trips. */
const ROUND_TRIPS_TO_RECOVER = 64;

export const swift: CongestionRule = {
  summary: 'by delay',
  create: ({ segmentBytes, maxWindow, targetDelay }) =>
    new Swift({
      segmentBytes,
      maxWindow,
      baseTarget: targetDelay,
      additiveIncrease: Math.max(1, maxWindow / 2 / ROUND_TRIPS_TO_RECOVER / segmentBytes),
    }),
};

const BETA = 0.8;
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
      // In one round trip the window is acknowledged once, so that these parts add up to the increase.
      const parts = ackedBytes / Math.max(this.windowBytes, this.#segment);
      this.#set(this.windowBytes + this.#increase * parts);
    } else if (now - this.#lastDecrease >= rtt) {
      this.#lastDecrease = now;
      this.#set(this.windowBytes * Math.max(1 - (BETA * (rtt - target)) / rtt, 1 - MAX_DECREASE));
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
