// Queue pairs on their way out: what they had to send leaves, what the device holds of receives comes back, then they are
// destroyed. The loop goes on meanwhile.
import { SETTLE_MICROSECONDS } from './path-end.ts';
import type { RailEnd, VerbsRail } from './verbs-rail.ts';

/** A failed queue pair gives back its receives at once. Devices without an event for that of shared ones get this long. */
const FLUSH_MICROSECONDS = 100_000;

interface Leaving {
  readonly end: RailEnd;
  /** Sending what it has; then failed, and flushing. */
  isFlushing: boolean;
  /** Of the stage. */
  since: number;
}

export class LeavingEnds {
  readonly #drain: (rail: VerbsRail) => void;
  readonly #onClosed: (end: RailEnd) => void;
  #leaving: Leaving[] = [];

  /**
   * `drain` takes in all that has arrived at a port. `onClosed` hears of ends whose queue pairs are destroyed.
   */
  constructor(drain: (rail: VerbsRail) => void, onClosed: (end: RailEnd) => void) {
    this.#drain = drain;
    this.#onClosed = onClosed;
  }

  get count(): number {
    return this.#leaving.length;
  }

  /** Nobody sends over it any more. */
  add(end: RailEnd, now: number): void {
    this.#leaving.push({ end, isFlushing: false, since: now });
  }

  /** Takes each as far as it has come. */
  advance(now: number): void {
    if (this.#leaving.length === 0) return;
    const leaving = this.#leaving;
    this.#leaving = leaving.filter((one) => !this.#isReady(one, now));
    for (const one of leaving) if (!this.#leaving.includes(one)) this.#close(one.end);
  }

  /** Closes all, when what they had to send has left or had its time. Receives are not waited for: they go with the device. */
  finish(clock: () => number): void {
    const until = clock() + SETTLE_MICROSECONDS;
    for (const { end } of this.#leaving) {
      while (!end.isFailed && end.underWay > 0 && clock() < until) end.rail.reapSome();
      end.rail.closeEnd(end);
      this.#onClosed(end);
    }
    this.#leaving = [];
  }

  #isReady(one: Leaving, now: number): boolean {
    const { end } = one;
    const { rail } = end;
    rail.reapSome();
    if (rail.findEnd(end.queuePair.number) !== end) return true;
    if (!one.isFlushing) {
      if (!end.isFailed && end.underWay > 0 && now - one.since < SETTLE_MICROSECONDS) return false;
      one.isFlushing = true;
      one.since = now;
      try {
        end.queuePair.fail();
      } catch {
        // A device that is gone flushes nothing.
        return true;
      }
      return false;
    }
    if (now - one.since >= FLUSH_MICROSECONDS) return true;
    const hasReceives = rail.shared === undefined ? !rail.receiver.hasGivenBack(end) : !end.hasTakenLast;
    return end.underWay === 0 && !hasReceives;
  }

  #close(end: RailEnd): void {
    const { rail } = end;
    // Libraries drop completions with the queue pair that they are of, and with them the memory they stand for.
    this.#drain(rail);
    rail.closeEnd(end);
    // Those of drivers that keep them come first, before the memory goes to others.
    this.#drain(rail);
    rail.receiver.strip(end);
    this.#onClosed(end);
  }
}
