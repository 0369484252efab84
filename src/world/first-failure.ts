// Finds which rank failed first: by whom the ranks blame, then by what the launcher saw first, a note or the end of a process; never by clocks.
import { hostname } from 'node:os';
import type { FailureNote, NotedError } from './failure-log.ts';
import { exitCodeOf, type RankResult } from './rank-process.ts';

/** The failure that ended a job. */
export interface RankFailure {
  readonly rank: number;
  readonly pid: number;
  readonly host: string;
  /** What the rank ended with; null if a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  /** When it failed, in milliseconds since 1970. */
  readonly time: number;
  /** What it told before it ended, if it told anything. */
  readonly error?: NotedError;
}

export interface FoundFailure extends RankFailure {
  /** True if this rank blames ranks of other nodes, or lost the store that the launcher of another node serves. */
  readonly blamesOthers: boolean;
}

/** An end of a rank's process as the launcher saw it. */
export interface SeenExit {
  readonly rank: number;
  /** How many notes there were by then. */
  readonly notes: number;
}

/** True for a rank that ended badly by itself; one that noted an error first was not stopped for the errors of others. */
export function hasFailed(end: RankResult, notes: readonly FailureNote[]): boolean {
  if (end.exitCode === 0) return false;
  return !end.stopped || notes.some((note) => note.rank === end.rank && note.error !== undefined);
}

/**
 * The first failure among ranks that have ended, undefined if none of them has failed. `notes` are in the order in which
 * they were made, `exits` in the order in which the launcher saw them. A rank that blames another one that has failed too was
 * not the first. Among the rest the order of notes counts, and a rank that noted nothing, because a signal ended it, comes
 * behind the notes that there were when the launcher saw its end, and before later ones.
 */
export function firstFailure(
  ends: readonly RankResult[],
  notes: readonly FailureNote[],
  exits: readonly SeenExit[],
): FoundFailure | undefined {
  const failed = ends.filter((end) => hasFailed(end, notes));
  const failedRanks = new Set(failed.map(({ rank }) => rank));
  const own = new Set(ends.map(({ rank }) => rank));
  const facts = failed.map((end) => {
    const at = notes.findIndex(({ rank }) => rank === end.rank);
    const note = notes[at];
    // A rank that was started again has ended before.
    const exit = exits.findLastIndex(({ rank }) => rank === end.rank);
    // Between two notes: before the one that would be the next.
    const place = at < 0 ? (exits[exit]?.notes ?? notes.length) - 0.5 : at;
    return { end, place, exit, time: note?.time ?? end.endedAt, note, because: note?.because ?? [] };
  });
  const ordered = facts.toSorted((left, right) => left.place - right.place || left.exit - right.exit);
  const first = ordered.find(({ because }) => !because.some((rank) => failedRanks.has(rank))) ?? ordered[0];
  if (first === undefined) return undefined;
  const { end, note, time, because } = first;
  // What the launcher's signal made of a rank that had failed already is not its own end.
  const ownEnd = end.stopped ? { exitCode: note?.exitCode ?? 1, signal: null } : end;
  return {
    rank: end.rank,
    pid: end.pid,
    host: hostname(),
    exitCode: ownEnd.exitCode,
    signal: ownEnd.signal,
    time,
    ...(note?.error === undefined ? {} : { error: note.error }),
    blamesOthers:
      (because.length > 0 || note?.error?.code === 'WL_PEER_LOST') && because.every((rank) => !own.has(rank)),
  };
}

/** The ranks that a rank blames in its first note. */
export function blamedBy(rank: number, notes: readonly FailureNote[]): readonly number[] {
  return notes.find((note) => note.rank === rank)?.because ?? [];
}

/** The exit code of a job: 0, or that of its first failure as a shell would give it. */
export function jobExitCode(failure: RankFailure | undefined): number {
  return failure === undefined ? 0 : exitCodeOf(failure);
}
