// How one side of a bench tells the other why it ends, so that both can say the cause.
import type { WeftlineError } from '../../core/errors.ts';
import { decodePeerError, encodeRefusal } from '../../meeting/frames.ts';

/** What is said in place of the next word. */
export interface FailureWord {
  readonly failed: unknown;
}

/** An error that the other side has told is not told back. */
const told = new WeakSet<object>();

export function failureWord(error: unknown): FailureWord {
  return { failed: encodeRefusal(error) };
}

/** The error that a word stands for, if it stands for one; `who` said it. */
export function decodePeerFailure(word: unknown, who: string): WeftlineError | undefined {
  if (typeof word !== 'object' || word === null || !('failed' in word)) return undefined;
  const error = decodePeerError(word.failed, `${who} failed: `);
  told.add(error);
  return error;
}

export function isFromPeer(error: unknown): boolean {
  return typeof error === 'object' && error !== null && told.has(error);
}
