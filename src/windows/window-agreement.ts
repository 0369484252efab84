// The steps in which the ranks make a window together: each step's work succeeds on all of them, or all get one error.
import type { CallWait } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { shareOutcome } from '../world/outcomes.ts';
import type { RankGroup } from '../world/rank-group.ts';

export interface WindowAgreement extends CallWait {
  /** Whose ranks of this host share the window. */
  readonly group: RankGroup;
  /** Of the object that the window serves; only for names and errors. */
  readonly name: string;
  /** Bytes per rank, the same on every rank. */
  readonly bytes: number;
}

const shared = new WeakSet<object>();

/** True for an error that every rank got alike, so that all know where they stand and can go on together. */
export function isSharedByAll(error: unknown): boolean {
  return typeof error === 'object' && error !== null && shared.has(error);
}

function sharedByAll(error: WeftlineError): WeftlineError {
  shared.add(error);
  return error;
}

/**
 * Collective over the group: returns what `work` returned on every rank, by rank. Fails on all ranks with the error of
 * the first rank where it threw, or with WL_CONFIG_MISMATCH when the windows' sizes differ.
 */
export async function agree<T>(window: WindowAgreement, step: string, work: () => T | Promise<T>): Promise<T[]> {
  const { group, name, bytes } = window;
  const { facts, values, failure } = await shareOutcome(
    group,
    { name: `window/${name}/${step}`, facts: bytes, work },
    window,
  );
  if (failure !== undefined) throw sharedByAll(failure);
  const other = facts.findIndex((otherBytes) => otherBytes !== bytes);
  if (other === -1) return values as T[];
  const rank = group.ranks[other];
  throw sharedByAll(
    new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `Window ${name} has ${bytes} bytes here and ${facts[other]} on rank ${rank}; all ranks must ask for the same`,
      { details: { rank, bytes, otherBytes: facts[other] } },
    ),
  );
}

/** The same for work whose result stays here: returns what `work` returned on this rank. */
export async function agreeHere<T>(window: WindowAgreement, step: string, work: () => T): Promise<T> {
  const made: T[] = [];
  await agree(window, step, () => {
    made.push(work());
  });
  return made[0]!;
}
