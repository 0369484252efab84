// When the engine of a loop has its turn, and when the loop may sleep: the same whatever carries the packets.
import type { TransportEngine } from '../engine/transport-engine.ts';

/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const MAX_SLEEP_MICROSECONDS = 100_000;
const STALE_MICROSECONDS = 1000;

export class EngineTurns {
  readonly #engine: TransportEngine;
  readonly #spinUs: number;
  #lastWork = 0;
  #lastTimer = 0;

  constructor(engine: TransportEngine, spinUs: number) {
    this.#engine = engine;
    this.#spinUs = spinUs;
  }

  /** Hot path. Lets the engine send if packets came (`isBusy`) or something is due. False if there was nothing to do. */
  take(now: number, isBusy: boolean): boolean {
    if (this.#engine.nextDeadline() > now && !isBusy) return false;
    this.#runTimer(now);
    this.#lastWork = now;
    return true;
  }

  /** True once so little happens that the thread had better sleep. */
  get isIdle(): boolean {
    return microseconds() - this.#lastWork >= this.#spinUs;
  }

  /** How many microseconds, at most `most`, the loop may sleep; 0 or less if the engine has something to do. */
  sleepTime(most: number = MAX_SLEEP_MICROSECONDS): number {
    return Math.min(this.#engine.nextDeadline() - microseconds(), most, MAX_SLEEP_MICROSECONDS);
  }

  /** As PacketLoop.touch says. */
  touch(): void {
    const now = microseconds();
    // The engine counts the silence of peers from the time it was last told.
    if (now - this.#lastTimer > STALE_MICROSECONDS) this.#runTimer(now);
    this.#lastWork = now;
  }

  #runTimer(now: number): void {
    this.#engine.onTimer(now);
    this.#lastTimer = now;
  }
}

/** The clock of the loops of this thread. */
export function microseconds(): number {
  return performance.now() * 1000;
}
