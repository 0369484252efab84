// A step that all ranks of a group take together: each does its part, and all learn how it went everywhere.
import { type CallWait, remaining } from '../core/deadline.ts';
import {
  asWeftlineError,
  blamedRanks,
  decodeError,
  type EncodedError,
  encodeError,
  WeftlineError,
} from '../core/errors.ts';
import type { RankGroup } from './rank-group.ts';

interface Step<F, T> {
  /** Name of the exchange, see allGather(). */
  readonly name: string;
  /** What this rank tells besides; JSON. */
  readonly facts: F;
  /** This rank's part; what it returns is JSON. */
  readonly work: () => T | Promise<T>;
}

interface Outcomes<F, T> {
  /** Facts by rank. */
  readonly facts: readonly F[];
  /** Values by rank; undefined where the work failed. */
  readonly values: readonly (T | undefined)[];
  /** The error of the first rank where the work failed, the same on all ranks. */
  readonly failure: WeftlineError | undefined;
}

/** Error for the other ranks. A rank that was lost is where it began, not the one that noticed. */
export function encodeFailure(thrown: unknown, { worldRank }: Pick<RankGroup, 'worldRank'>): EncodedError {
  const isLoss = thrown instanceof WeftlineError && thrown.code === 'WL_PEER_LOST';
  return encodeError(thrown, (isLoss ? blamedRanks(thrown)[0] : undefined) ?? worldRank);
}

/** Collective. Fails only when the ranks do not come together, with what failed on this rank if it waited in vain to tell. */
export async function shareOutcome<F, T>(
  group: RankGroup,
  { name, facts, work }: Step<F, T>,
  wait: CallWait,
): Promise<Outcomes<F, T>> {
  let value: T | undefined;
  let error: EncodedError | null = null;
  let own: unknown;
  try {
    value = await work();
  } catch (thrown) {
    own = thrown;
    error = encodeFailure(thrown, group);
  }
  const all = await group.allGather(name, { facts, error, value }, remaining(wait)).catch((late: unknown) => {
    // What kept this rank until its time was over says more than that the others have not come either.
    throw error !== null && asWeftlineError(late).code === 'WL_TIMEOUT' ? own : late;
  });
  const failed = all.find((entry) => entry.error !== null);
  return {
    facts: all.map((entry) => entry.facts),
    values: all.map((entry) => entry.value),
    failure: failed?.error ? decodeError(failed.error) : undefined,
  };
}
