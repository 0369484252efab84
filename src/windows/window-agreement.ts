// The steps in which the ranks make a window together: each step's work succeeds on all of them, or all get one error.
import { type CallWait, remaining } from '../core/deadline.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import type { World } from '../world/world.ts';

export interface WindowAgreement extends CallWait {
  readonly world: World;
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
 * Collective over the world: returns what `work` returned on every rank, by rank. Fails on all ranks with the error of
 * the first rank where it threw, or with WL_CONFIG_MISMATCH when the windows' sizes differ.
 */
export async function agree<T>(window: WindowAgreement, step: string, work: () => T | Promise<T>): Promise<T[]> {
  const { world, name, bytes } = window;
  let value: T | undefined;
  let error: EncodedError | null = null;
  try {
    value = await work();
  } catch (thrown) {
    error = encodeError(thrown, world.rank);
  }
  const all = await world.allGather(`window/${name}/${step}`, { bytes, error, value }, remaining(window));
  const failed = all.find((entry) => entry.error !== null);
  if (failed?.error) throw sharedByAll(decodeError(failed.error));
  const other = all.findIndex((entry) => entry.bytes !== bytes);
  if (other !== -1) {
    const otherBytes = all[other]?.bytes;
    throw sharedByAll(
      new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `Window ${name} has ${bytes} bytes here and ${otherBytes} on rank ${other}; all ranks must ask for the same`,
        { details: { rank: other, bytes, otherBytes } },
      ),
    );
  }
  return all.map((entry) => entry.value as T);
}
