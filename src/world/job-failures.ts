// What a launcher knows of failures of its ranks: what they noted, in which order they ended, and what of it counts no more.
import type { FailureLog, FailureNote } from './failure-log.ts';
import { blamedBy, firstFailure, type FoundFailure, type SeenExit } from './first-failure.ts';
import type { RankResult } from './rank-process.ts';

export class JobFailures {
  readonly #log: FailureLog;
  readonly #exits: SeenExit[] = [];
  /** By rank: how many notes there were when it was started again. */
  readonly #startedAgain = new Map<number, number>();

  constructor(log: FailureLog) {
    this.#log = log;
  }

  /** The process of the rank was just seen to have ended. */
  ended(rank: number): void {
    this.#exits.push({ rank, notes: this.#log.read().length });
  }

  /** The rank gets another process; what the last one noted concerns the job no more. */
  startsAgain(rank: number): void {
    this.#startedAgain.set(rank, this.#log.read().length);
  }

  /** Without those of ranks that were started again since. */
  notes(): FailureNote[] {
    const isOld = ({ rank }: FailureNote, at: number): boolean => at < (this.#startedAgain.get(rank) ?? 0);
    // The place of a note counts, so it is no note of any rank rather than none.
    return this.#log.read().map((note, at) => (isOld(note, at) ? { ...note, rank: -1 } : note));
  }

  /**
   * The first failure among ranks of this node that have ended. `helpers`: ranks of it that nobody needs any more. One of
   * them that lost ranks of another node has not failed, nor has one that lost those; if ranks of another node failed by
   * themselves, their launcher tells of it.
   */
  among(ends: readonly RankResult[], helpers: ReadonlySet<number>, own: ReadonlySet<number>): FoundFailure | undefined {
    const notes = this.notes();
    const excused = new Set<number>();
    const isExcused = ({ rank }: RankResult): boolean => {
      const because = helpers.has(rank) ? blamedBy(rank, notes) : [];
      return because.length > 0 && because.every((lost) => !own.has(lost) || excused.has(lost));
    };
    // Each one may excuse others.
    for (let known = -1; known < excused.size;) {
      known = excused.size;
      for (const end of ends) if (isExcused(end)) excused.add(end.rank);
    }
    const counting = ends.filter(({ rank }) => !excused.has(rank));
    return firstFailure(counting, notes, this.#exits);
  }
}
