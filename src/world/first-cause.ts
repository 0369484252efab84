// Whom a rank whose time is over has waited for in the end: the rank that it names may itself wait for another one.
import { blamedRanks, type ErrorDetails, WeftlineError } from '../core/errors.ts';
import { whileWaiting } from '../core/waits.ts';
import type { FirstCauseOptions } from './rank-group.ts';
import type { StoreLink } from './store.ts';
import { type Cause, causesBehind } from './watching/conclusion.ts';
import { isEnough, viewOfAnswers } from './watching/job-view.ts';

/** How long ranks have to say whom they wait for; one that the system shows as stopped is not waited for. */
const PATIENCE_MS = 2_000;

/**
 * Of a WL_TIMEOUT that names ranks which wait for others themselves: the same, naming those at the end of that, or what another
 * rank has told meanwhile. Any other error, and one that names the right ranks, is returned as it is. Never fails.
 */
export async function firstCause(
  link: StoreLink,
  error: unknown,
  { worldRank, told, patienceMs = PATIENCE_MS }: FirstCauseOptions & { readonly worldRank: number },
): Promise<unknown> {
  const named = blamedRanks(error);
  if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT' || named.length === 0) return error;
  if (link.ask === undefined) return error;
  // Others that ask at the same time must see that this rank still waits.
  const describe = () => ({ operation: 'why ranks that it needs did not come', ranks: named });
  let causes: readonly Cause[];
  try {
    const answers = await whileWaiting(link.ask(Math.min(patienceMs, PATIENCE_MS), isEnough), describe);
    causes = causesBehind(viewOfAnswers(answers), worldRank, named);
  } catch (silence) {
    // Where rank 0 holds the store, it is that rank which does not answer.
    const { message } = silence as Error;
    causes = blamedRanks(silence).map((rank) => ({ rank, sentence: message }));
  }
  return told?.() ?? naming(error, causes);
}

function naming(error: WeftlineError, causes: readonly Cause[]): WeftlineError {
  const named = blamedRanks(error);
  if (causes.every(({ rank }) => named.includes(rank))) return error;
  const message = [error.message, ...causes.map(({ sentence }) => sentence)].join('. ');
  const details: ErrorDetails = { ...error.details, ranks: causes.map(({ rank }) => rank) };
  return new WeftlineError(error.code, message, { details, cause: error });
}
