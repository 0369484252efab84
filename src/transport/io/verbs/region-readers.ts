// The queue pairs that read memory of a region at one moment, and how they come to an end of it.
import { type PathEnd, SETTLE_MICROSECONDS } from './path-end.ts';

/** What is done with the ends of a port. */
export interface ReadingRail {
  /** Takes completions of sends, if there may be any. Returns how many there were. */
  reapSome(): number;
  fail(end: PathEnd): void;
  cutOff(end: PathEnd): void;
  closeEnd(end: PathEnd): void;
}

export interface Reader {
  readonly end: PathEnd;
  /** Sequence behind the last packet of the region that the end had then. Later ones do not count. */
  readonly mark: number;
}

export function isReading({ end, mark }: Reader): boolean {
  // Packets that a failed queue pair has refused are taken back, and with them what the mark says of those before.
  return end.isFailed ? end.underWay > 0 : end.isUnderWay(mark - 1);
}

export class RegionReaders {
  readonly #rail: ReadingRail;
  readonly #since: number;
  #readers: readonly Reader[];
  /** When those that were left were failed. */
  #failedAt: number | undefined;

  constructor(rail: ReadingRail, readers: readonly Reader[], now: number) {
    this.#rail = rail;
    this.#readers = readers;
    this.#since = now;
  }

  /**
   * To be asked until it is true. Queue pairs that go on reading for half a second are failed, and destroyed if the device
   * does not flush them for as long again.
   */
  areThrough(now: number): boolean {
    while (this.#rail.reapSome() > 0);
    this.#readers = this.#readers.filter(isReading);
    const readers = this.#readers;
    if (readers.length === 0) return true;
    if (this.#failedAt === undefined) {
      if (now - this.#since < SETTLE_MICROSECONDS) return false;
      this.#failedAt = now;
      for (const { end } of readers) this.#rail.cutOff(end);
      return false;
    }
    if (now - this.#failedAt < SETTLE_MICROSECONDS) return false;
    for (const { end } of readers) {
      this.#rail.fail(end);
      this.#rail.closeEnd(end);
    }
    this.#readers = [];
    return true;
  }
}
